"""A stand-in for a GPU's copy engine: copies land when the test says so, in any order, or never."""

from torch import Tensor


class SlowCopy:
    """Keeps each copy back until it is let go; `partial` lets only the first rows of one land."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def __call__(self, destination: Tensor, source: Tensor) -> None:
        self.waiting.append((destination, source))

    def land(self, index: int = 0) -> None:
        destination, source = self.waiting.pop(index)
        destination.copy_(source)

    def partial(self, rows: slice, index: int = 0) -> None:
        destination, source = self.waiting[index]
        destination[rows] = source[rows]
