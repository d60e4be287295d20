"""Measure callables against each other and print each figure beside its goal.

A machine's speed drifts with its load and its clock, so seconds of two runs cannot be compared.
Here the contestants take turns, a short block each, and only what was measured in one round is divided.

    round 1: [a a a a] [b] [c c]    round 2: [b] [c c] [a a a a]    round 3: [c c] [a a a a] [b]
    round 4: [b] [a a a a] [c c]    ...

Each leads as often as the others, and comes after each of them in turn: what one leaves in the caches, or in
the allocator, slows the next. One call stands for its block: the median one, or the fastest where nothing but
the machine's other load can slow a call down. Of the rounds, the median and the middle half are shown; or,
where a goal is near, the interval that holds the true median.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FEWEST_CALLS_PER_BLOCK, MOST_CALLS_PER_BLOCK = 3, 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, and the quartiles or the interval around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Take the quartiles of at least two values."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @classmethod
    def of_median(cls, values: Iterable[float]) -> Self:
        """Take the interval that holds the true median in 19 of 20 runs, however the values are spread.

        It is counted off in order, and narrows with the root of their number: of 100 values from the 40th
        to the 61st, of 900 from the 420th to the 481st.
        """
        ordered = sorted(values)
        half = 0.98 * math.sqrt(len(ordered))
        low = max(0, math.floor(len(ordered) / 2 - half) - 1)
        return cls(statistics.median(ordered), ordered[low], ordered[-1 - low])


@dataclass(frozen=True, slots=True)
class Rounds:
    """What one call of each contestant took, round by round."""

    seconds: Mapping[str, Sequence[float]]

    def microseconds(self, name: str) -> Spread:
        """Show one contestant by itself."""
        return Spread.of(seconds * 1e6 for seconds in self.seconds[name])

    def ratio(self, name: str, base: str) -> Spread:
        """Show how many times as long as `base` a contestant took within the same round."""
        return Spread.of(self.ratios(name, base))

    def ratios(self, name: str, base: str) -> list[float]:
        """Return that of each round."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return [seconds / base_seconds for seconds, base_seconds in pairs]


def take_turns(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    block_seconds: float = 0.02,
    stands_for_block: Callable[[Sequence[float]], float] = statistics.median,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Call each contestant for about `block_seconds` in every round, each round in another order.

    A contestant that starts work elsewhere (on a GPU) has to wait for it itself. `stands_for_block=min` is
    for contestants that do all their work in the call; where threads of ours may slow one, take the median.
    """
    calls = {name: _calls_per_block(call, block_seconds, clock) for name, call in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for order in orders(list(contestants), rounds):
        for name in order:
            seconds[name].append(stands_for_block(_block(contestants[name], calls[name], clock)))
    return Rounds(seconds)


def _calls_per_block(call: Callable[[], object], block_seconds: float, clock: Callable[[], float]) -> int:
    call()  # the first call pays for caches and allocations
    fitting = round(block_seconds / min(_block(call, FEWEST_CALLS_PER_BLOCK, clock)))
    return min(MOST_CALLS_PER_BLOCK, max(FEWEST_CALLS_PER_BLOCK, fitting))


def orders(names: list[str], rounds: int) -> Iterator[list[str]]:
    """Return an order for each round: once through all leaders, then the circle itself is mixed anew."""
    dice = random.Random(1)
    for by in range(rounds):
        if by and by % len(names) == 0:
            dice.shuffle(names)
        yield [names[(by + place) % len(names)] for place in range(len(names))]


def _block(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> list[float]:
    """Time each of so many calls, in seconds."""
    return [_seconds(call, clock) for _ in range(calls)]


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A goal from below: `AtLeast(10)` is met by 10 and by 11."""

    bound: float

    def __str__(self) -> str:
        return f"at least {self.bound:g}"

    def is_met_by(self, figure: float) -> bool:
        """Say whether a figure reaches the bound."""
        return figure >= self.bound


@dataclass(frozen=True, slots=True)
class AtMost:
    """A goal from above: `AtMost(1.25)` is met by 1.25 and by 1.0."""

    bound: float

    def __str__(self) -> str:
        return f"at most {self.bound:g}"

    def is_met_by(self, figure: float) -> bool:
        """Say whether a figure stays within the bound."""
        return figure <= self.bound


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of a table; without a goal it only informs."""

    what: str
    spread: Spread
    goal: AtLeast | AtMost | None = None

    @property
    def verdict(self) -> str:
        """Judge the median; the spread beside it shows how far to trust that."""
        if self.goal is None:
            return ""
        return "met" if self.goal.is_met_by(self.spread.median) else "missed"

    def cells(self) -> tuple[str, ...]:
        """Show the line as the cells of a row."""
        around = f"{_figure(self.spread.low)} to {_figure(self.spread.high)}"
        return (self.what, _figure(self.spread.median), around, str(self.goal or ""), self.verdict)


def _figure(value: float) -> str:
    """Show three digits, four from 1 to 2, where ratios are, and all of them before the point.

    0.988, 1.017, 12.3, 7940.
    """
    if abs(value) >= 100:  # noqa: PLR2004
        return f"{value:.0f}"
    return f"{value:.4g}" if 1 <= value < 2 else f"{value:.3g}"  # noqa: PLR2004


MIDDLE_HALF, OF_THE_MEDIAN = "middle half", "19 times of 20 in"


def print_table(title: str, lines: Iterable[Line], around: str = MIDDLE_HALF) -> None:
    """Print one line per figure, its columns aligned; `around` says what stands beside the median."""
    rows = [("", "median", around, "goal", "verdict"), *(line.cells() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(title)
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread, and afterwards in as many as before."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
