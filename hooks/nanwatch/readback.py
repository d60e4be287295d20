"""How the counts of a step reach host memory without anybody waiting for them.

A count lands in a slot: host memory that is pre-filled with -1, so that whoever looks can tell
that all R counts are there without asking the device: a CUDA call from another thread would
break a graph capture, and after a device assert events only raise, just when counts matter most.
Counts that were made on the CPU are there already: they are copied, and need no slot.
    R = logits rows of a step
"""

import ctypes
from array import array
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

NOT_LANDED = -1
CLEAN = b""  # stands for the counts of a clean step, of any number of rows
MOST_ROWS = 16_384
SLOTS = 64
_INT32_BYTES = 4
_STILL_MINUS_ONE = b"\xff" * _INT32_BYTES

Copy = Callable[[Tensor, Tensor], object]  # (destination, source), on the current stream


class Counts(Protocol):
    """The counts of one step on their way to the host, [R] int32."""

    def landed(self) -> bool:
        """Whether every count is there; never waits and makes no device call."""
        ...

    def take(self) -> bytes:
        """Return the landed counts and give their memory back; once."""
        ...


class Slot:
    """A place for the counts of one step, pinned where they come from a GPU."""

    __slots__ = ("_address", "_cells", "_give_back", "_rows", "_source", "_tensor")

    def __init__(self, most_rows: int, *, pinned: bool, give_back: Callable[["Slot"], None]) -> None:
        self._tensor = torch.full((most_rows,), NOT_LANDED, dtype=torch.int32, pin_memory=pinned)
        self._address = self._tensor.data_ptr()
        self._cells = (ctypes.c_int32 * most_rows).from_address(self._address)
        self._give_back = give_back
        self._rows = 0
        self._source: Tensor | None = None

    def begin(self, counts: Tensor, copy: Copy) -> None:
        """Start the copy of `counts` [R] into this slot.

        The source is kept until the slot is taken: the caching allocator may hand its memory to
        the next step while the copy is still queued on another stream.
        """
        self._rows = counts.numel()
        self._source = counts
        copy(self._tensor[: self._rows], counts)

    def landed(self) -> bool:
        """Whether every row is there.

        A count is below 2^31, so the highest byte of one that landed is below 0x80, and any four
        bytes in a row hold one such byte: four times 0xFF is found only where a -1 still stands.
        """
        if self._rows and self._cells[self._rows - 1] == NOT_LANDED:  # mostly the last to land
            return False
        return _STILL_MINUS_ONE not in ctypes.string_at(self._address, self._rows * _INT32_BYTES)

    def take(self) -> bytes:
        """Return the counts, fill the slot with -1 again and give it back to its pool."""
        size = self._rows * _INT32_BYTES
        counts = ctypes.string_at(self._address, size)
        ctypes.memset(self._address, 0xFF, size)
        self._rows, self._source = 0, None
        self._give_back(self)
        return counts


class SlotPool:
    """The slots of one probe: made once, used in turn, never more than `slots`."""

    def __init__(
        self, *, pinned: bool, most_rows: int = MOST_ROWS, slots: int = SLOTS, copy: Copy | None = None
    ) -> None:
        self._most_rows = most_rows
        self._copy = copy or _copy_without_waiting
        self._free: deque[Slot] = deque()
        with torch.inference_mode(mode=False):  # a tensor made in inference mode cannot be written outside it
            for _ in range(slots):
                self._free.append(Slot(most_rows, pinned=pinned, give_back=self._free.append))

    def send(self, counts: Tensor) -> Counts | str:
        """Start the way of `counts` [R] to the host; returns a drop reason where there is no place."""
        if counts.numel() > self._most_rows:
            return "rows"
        try:
            slot = self._free.popleft()
        except IndexError:
            return "slots"
        slot.begin(counts, self._copy)
        return slot


def bytes_of(counts: Tensor) -> bytes:
    """Copy counts [R] int32 that were made on the CPU: they are there, nothing has to be waited for."""
    return ctypes.string_at(counts.data_ptr(), counts.numel() * _INT32_BYTES)


def is_clean(counts: bytes) -> bool:
    """Whether no row held a NaN: one comparison, no object for a row. CLEAN is."""
    return counts == bytes(len(counts))


def counts_of(counts: bytes) -> list[int]:
    """Return the counts [R] of a step."""
    return array("i", counts).tolist()


def _copy_without_waiting(destination: Tensor, source: Tensor) -> None:
    destination.copy_(source, non_blocking=True)
