"""One source as the reader knows it: what it counted, whether it lives, and its recent past.

All times here are seconds on the reader's own monotonic clock.
"""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .kept import Kept
from .line import CorruptedRequest, Labels, ReportLine, StartLine, Totals

FRESH_SECONDS = 10.0
HISTORY_SECONDS = 3600.0  # the longest window that health can look back over
_SAMPLE_EVERY_SECONDS = 0.5


class Sample(NamedTuple):
    """The requests that one life had seen at one time."""

    at: float
    requests: int


class Seen(NamedTuple):
    """A corrupted request, and when its first NaN was seen, on the reader's clock."""

    request: CorruptedRequest
    at: float


@dataclass(slots=True)
class Source:
    """All lives of one file id; totals only grow."""

    file: str
    labels: Labels
    totals: Totals = field(default_factory=Totals)
    start: StartLine | None = None  # the current life, or the last one
    last_step_seconds: float = 0.0  # wall clock, 0 before the first step
    grew_at: float = float("-inf")  # when its newest line was written
    active: bool = False  # its lock is held and its file grew within FRESH_SECONDS
    corrupted: Kept[Seen] = field(default_factory=Kept)
    history: deque[Sample] = field(default_factory=deque)  # of the current life, oldest first
    _held: dict[Path, bool] = field(default_factory=dict)

    @property
    def counting(self) -> bool:
        """Whether its requests are summed, or it is a rank that only annotates."""
        return self.start is None or self.start.counting

    def take(self, line: StartLine | ReportLine, at: float) -> None:
        """Fold one line that was written at `at`."""
        self.totals.raise_to(line.totals)
        self.grew_at = max(self.grew_at, at)
        if isinstance(line, StartLine):
            self._begin_life(line, at)
            return
        self.last_step_seconds = line.last_step_seconds
        self._remember(at)
        for request in line.corrupted:
            self._take_request(request, line, at)

    def observe_life(self, path: Path, *, held: bool, now: float) -> None:
        """Note whether the lock of its file at `path` is held."""
        self._held[path] = held
        self.active = any(self._held.values()) and now - self.grew_at <= FRESH_SECONDS

    def is_of_current_life(self, request: CorruptedRequest) -> bool:
        """Whether the life that saw this request is the one that may still run."""
        return self.start is not None and request.life == self.start.life

    def requests_since(self, at: float) -> float:
        """Requests first seen after `at` by the current life, interpolated between samples."""
        return self.totals.requests - self._requests_at(at)

    def _requests_at(self, at: float) -> float:
        after: Sample | None = None
        for sample in reversed(self.history):
            if sample.at <= at:
                return sample.requests if after is None else _between(sample, after, at)
            after = sample
        return after.requests if after is not None else self.totals.requests

    def _begin_life(self, line: StartLine, at: float) -> None:
        is_new = self.start is None or self.start.life != line.life
        self.start = line
        if is_new:
            self.history.clear()
            self.history.append(Sample(at, line.totals.requests))

    def _remember(self, at: float) -> None:
        if len(self.history) > 1 and at - self.history[-2].at < _SAMPLE_EVERY_SECONDS:
            self.history.pop()
        self.history.append(Sample(at, self.totals.requests))
        while self.history[0].at < at - HISTORY_SECONDS:
            self.history.popleft()

    def _take_request(self, request: CorruptedRequest, line: ReportLine, at: float) -> None:
        if request.key in self.corrupted:
            at = self.corrupted[request.key].at
        elif self.is_of_current_life(request):
            at -= max(0, line.boot_ns - request.first_seen_boot_ns) / 1e9
        ended = request.finished or not self.is_of_current_life(request)
        self.corrupted.put(request.key, Seen(request, at), finished=ended)


def _between(before: Sample, after: Sample, at: float) -> float:
    share = (at - before.at) / (after.at - before.at)
    return before.requests + share * (after.requests - before.requests)
