"""A stand-in for a GPU: tensors that say they are on one, while their values lie on the CPU.

Copies land when the test says so (slow_copy.py); whether a stream captures is a switch.
"""

from typing import Any

import torch
from torch import Tensor

from nanwatch.looking import Sight
from nanwatch.readback import SlotPool
from tests.hooks.slow_copy import SlowCopy


class OnGpu(Tensor):
    """Claims to be on a device, wherever that decides what nanwatch does."""

    is_cpu = False

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def on_gpu(values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    made: Tensor = torch.tensor(values, dtype=dtype).as_subclass(OnGpu)
    return made


class FakeGpu:
    """Slots with a slow copy, events that are counted, and a stream that may be capturing."""

    def __init__(self, slots: int = 4, most_rows: int = 16) -> None:
        self.copy = SlowCopy()
        self.capturing = False
        self.order: list[str] = []
        self.made = 0
        self.broken = False  # as after a device assert: every wait raises
        self._slots, self._most_rows = slots, most_rows

    def sight(self, *, events: bool = False) -> Sight:
        return Sight(events=events, make_pool=self.pool, capturing=lambda _device: self.capturing)

    def pool(self, _device: torch.device, *, events: bool) -> SlotPool:
        self.made += 1
        return SlotPool(
            pinned=False,
            most_rows=self._most_rows,
            slots=self._slots,
            copy=self.copy,
            make_event=(lambda: self) if events else None,
        )

    def record(self) -> None:
        self.order.append("record")

    def synchronize(self) -> None:
        self.order.append("wait")
        while not self.broken and self.copy.waiting:
            self.copy.land()
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
