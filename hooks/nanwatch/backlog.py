"""What was handed on to the recorder and is not folded yet, in the order of the engine's calls.

Nearly every step of an engine is clean and names the requests of the step before it. All such steps in a row
are one object that grows, so that a step leaves nothing behind, neither for the recorder nor for Python's
garbage collector:
    steps      a+b clean, a+b clean, a+b clean, a ends, b clean, b with NaN
    backlog    3 clean steps of a+b, the end of a, 1 clean step of b, the step with NaN
No lock: one thread adds at a time, and never in the midst of adding (pipeline.py sees to that), and the
recorder alone takes. It may take from a run that still grows: what it has not seen of it comes before
whatever was added next.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from .attribution import Layout
from .watcher import Landed, Told

MOST_ITEMS = 65_536  # past that no step without NaN is added, should a disk hang that long


class CleanSteps(NamedTuple):
    """Clean steps in a row, all of one layout."""

    layout: Layout
    steps: int
    ticket: int  # of the last
    wall_seconds: float  # of the last


class _Run:
    """Clean steps that may still become more."""

    __slots__ = ("_taken", "layout", "seen")

    def __init__(self, layout: Layout, ticket: int, wall_seconds: float) -> None:
        self.layout = layout
        self.seen = (1, ticket, wall_seconds)  # replaced as a whole: the recorder reads it at any moment
        self._taken = 0

    def take(self) -> CleanSteps | None:
        """Return what came since the last call."""
        steps, ticket, wall_seconds = self.seen
        new, self._taken = steps - self._taken, steps
        return CleanSteps(self.layout, new, ticket, wall_seconds) if new else None


class Backlog:
    """Items on their way to the recorder."""

    def __init__(self) -> None:
        self._items: deque[Landed | Told | _Run] = deque()
        self._growing: _Run | None = None  # the last that was added, where that is a run
        self._open: _Run | None = None  # the last that was taken from, where that is a run

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether there is room only for what must not be lost: steps with NaN, and whatever is no step."""
        return len(self._items) >= MOST_ITEMS

    def add(self, item: Landed | Told) -> None:
        """Add one item."""
        self._growing = None
        self._items.append(item)

    def add_clean(self, layout: Layout, ticket: int, wall_seconds: float) -> bool:
        """Add a step in which nothing was found; it joins the last one, where that was the like.

        Returns False where there was no room for it.
        """
        run = self._growing
        if run is not None and run.layout is layout:
            run.seen = (run.seen[0] + 1, ticket, wall_seconds)
            return True
        if self.is_full:
            return False
        self._growing = run = _Run(layout, ticket, wall_seconds)
        self._items.append(run)
        return True

    def take(self) -> Iterator[Landed | Told | CleanSteps]:
        """Take all that is there, in order."""
        while True:
            is_followed = bool(self._items)  # asked first: a run that is followed has grown for the last time
            new = self._open.take() if self._open is not None else None
            if new is not None:
                yield new
            if not is_followed:
                return
            item = self._items.popleft()
            self._open = item if isinstance(item, _Run) else None
            if not isinstance(item, _Run):
                yield item
