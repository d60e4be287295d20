"""The GPU that is measured. Tests hand in a stand-in of the same shape, to rehearse on the CPU."""

import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Call = Callable[[], object]


class Device(Protocol):
    """What the benchmarks ask of a GPU."""

    name: str
    where: torch.device
    l2_bytes: int

    def synchronize(self) -> None:
        """Wait for all that was started."""
        ...

    def recorded(self, calls: Sequence[Call]) -> Call:
        """Record the calls, one after the other, and return what replays them."""
        ...

    def seconds(self, replay: Call, times: int = 5) -> float:
        """Return the device time of one replay: the median of some."""
        ...


class Card:
    """The current CUDA device."""

    def __init__(self) -> None:
        self.where = torch.device("cuda", torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(self.where)
        self.name = str(properties.name)
        self.l2_bytes = int(properties.L2_cache_size)

    def synchronize(self) -> None:
        """Wait for all that was started."""
        torch.cuda.synchronize()

    def recorded(self, calls: Sequence[Call]) -> Call:
        """Record a CUDA graph of the calls; each is called once before, to compile and allocate."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            calls[0]()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        replay: Call = graph.replay
        return replay

    def seconds(self, replay: Call, times: int = 5) -> float:
        """Return the device time of one replay: the median of some, between two events."""
        replay()
        taken: list[float] = []
        for _ in range(times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            replay()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(taken)
