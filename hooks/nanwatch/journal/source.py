"""One source as the reader knows it: what it counted, whether it lives, and its recent past.

Two clocks, both in seconds:
    boot    the writer's boot clock, which its lines carry
    reader  the reader's own monotonic clock; reader = boot + offset
The reader finds the offset anew with every line. Only the current life's boot times are turned into
the reader's: an earlier life may have run under another boot.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from .kept import NEWEST, Kept
from .line import CorruptedRequest, Labels, ReportLine, StartLine
from .totals import Totals

FRESH_SECONDS = 10.0
HISTORY_SECONDS = 3600.0  # the longest window that health can look back over
SAMPLE_EVERY_SECONDS = 2.0
KEPT_SLACK = NEWEST // 10  # 400 bytes each, in a sidecar that is to stay small

_LONG_AGO = float("-inf")


class Sample(NamedTuple):
    """What the file's totals were at one time in the current life."""

    boot: float
    requests: float
    corrupted: float


@dataclass(slots=True)
class Source:
    """All lives of one file id; totals only grow."""

    file: str
    labels: Labels
    totals: Totals = field(default_factory=Totals)
    requests: int = 0  # those of `totals` that counting lives saw
    corrupted_requests: int = 0  # likewise
    start: StartLine | None = None  # the current life, or the last one
    last_step_seconds: float = 0.0  # wall clock, 0 before the first step
    grew_at: float = _LONG_AGO  # reader's clock: when its newest line was written
    held: bool = False  # a living process has its file
    active: bool = False  # ... wrote to it within FRESH_SECONDS, and looks at its engine
    changes: int = 0  # rises with every line, and where `held` or `active` changes
    corrupted: Kept[CorruptedRequest] = field(  # of all lives, as they were told
        default_factory=lambda: Kept(slack=KEPT_SLACK)
    )
    _history: deque[Sample] = field(default_factory=deque)  # of the current life, oldest first
    _newest_boot: float = 0.0  # of the current life's lines
    _offset: float = 0.0

    @property
    def counting(self) -> bool:
        """Whether its requests are summed, or it is a rank that only annotates."""
        return self.start is None or self.start.counting

    @property
    def blind(self) -> str:
        """Why the current life does not look at its engine, "" where it does."""
        return "" if self.start is None else self.start.blind

    @property
    def quarantined_blocks(self) -> int:
        """KV blocks that the current life holds back; a life that ended took its blocks along.

        Both cells go on over lives, and what an earlier one never gave back stays between them for ever:
        8 held and 5 given back at this life's start line, 10 and 6 now: 1 is held back, not 4.
        """
        if not self.held or self.start is None:
            return 0
        before, now = self.start.totals, self.totals
        held_back = now.quarantined_blocks - before.quarantined_blocks
        return max(0, held_back - (now.released_blocks - before.released_blocks))

    def take(self, line: StartLine | ReportLine, offset: float) -> None:
        """Fold one line; `offset` takes its boot time to the reader's clock."""
        boot = line.boot_ns / 1e9
        self.changes += 1
        self._count(line)
        self.grew_at = max(self.grew_at, boot + offset)
        if isinstance(line, StartLine):
            self._begin_life(line, boot, offset)
        else:
            self._go_on(line, boot, offset)

    def observe_lock(self, now: float, *, held: bool | None) -> None:
        """Note whether the lock is held; None: there are no locks, and the heartbeat alone tells."""
        before = (self.held, self.active)
        fresh = now - self.grew_at <= FRESH_SECONDS
        self.held = fresh if held is None else held
        self.active = self.held and fresh and not self.blind
        self.changes += (self.held, self.active) != before

    def dead_seconds(self, now: float) -> float:
        """How long no process has had its file; 0 while one does."""
        return 0.0 if self.held else now - self.grew_at

    def is_of_current_life(self, request: CorruptedRequest) -> bool:
        """Whether the life that saw this request is the one that may still run."""
        return self.start is not None and request.life == self.start.life

    def seen_at(self, request: CorruptedRequest) -> float:
        """When its first NaN was seen, on the reader's clock; minus infinity for an earlier life's."""
        if not self.is_of_current_life(request):
            return _LONG_AGO
        return request.first_seen_boot_ns / 1e9 + self._offset

    def known(self, request: CorruptedRequest) -> CorruptedRequest:
        """Return the entry that says the same, where there is one already."""
        mine = self.corrupted.get(request.key)
        return mine if mine == request and mine is not None else request

    def requests_since(self, at: float) -> float:
        """Requests that the current life first saw after `at`, interpolated between samples."""
        return self.totals.requests - self._sample_at(at).requests

    def corrupted_since(self, at: float) -> int:
        """Corrupted requests that the current life first saw after `at`.

        Exact as long as all of them are kept; beyond that from the totals, like `requests_since`.
        """
        listed = sum(self.seen_at(request) > at for request in self.corrupted.values())
        if listed < NEWEST:
            return listed
        return max(listed, round(self.totals.corrupted_requests - self._sample_at(at).corrupted))

    def _count(self, line: StartLine | ReportLine) -> None:
        """Raise the totals; what grew up to a start line was counted by the life before it."""
        counted_by = self.start or (line if isinstance(line, StartLine) else None)
        before = self.totals.requests, self.totals.corrupted_requests
        self.totals.raise_to(line.totals)
        if counted_by is None or counted_by.counting:
            self.requests += self.totals.requests - before[0]
            self.corrupted_requests += self.totals.corrupted_requests - before[1]

    def _begin_life(self, line: StartLine, boot: float, offset: float) -> None:
        if self.start is not None and not _is_after(line, self.start):
            return  # the file was renewed or is read again
        if self.start is None or self.start.life != line.life:
            self._history.clear()
            self._history.append(Sample(boot, line.totals.requests, line.totals.corrupted_requests))
        self.start, self._newest_boot, self._offset = line, boot, offset

    def _go_on(self, line: ReportLine, boot: float, offset: float) -> None:
        if boot >= self._newest_boot:
            self._newest_boot, self._offset = boot, offset
            self.last_step_seconds = line.last_step_seconds
            self._remember(Sample(boot, line.totals.requests, line.totals.corrupted_requests))
        for request in line.corrupted:
            ended = request.finished or not self.is_of_current_life(request)
            self.corrupted.put(request.key, request, finished=ended)

    def _remember(self, sample: Sample) -> None:
        history = self._history
        if len(history) > 1 and sample.boot - history[-2].boot < SAMPLE_EVERY_SECONDS:
            history.pop()
        history.append(sample)
        while len(history) > 1 and history[1].boot <= sample.boot - HISTORY_SECONDS:
            history.popleft()

    def _sample_at(self, at: float) -> Sample:
        """Return what had been counted at `at`; the first sample where the life began later."""
        boot = at - self._offset
        after: Sample | None = None
        for sample in reversed(self._history):
            if sample.boot <= boot:
                return sample if after is None else _between(sample, after, boot)
            after = sample
        return after or Sample(boot, self.totals.requests, self.totals.corrupted_requests)


def _is_after(one: StartLine, other: StartLine) -> bool:
    return one.clock != other.clock or one.boot_ns > other.boot_ns


def _between(before: Sample, after: Sample, boot: float) -> Sample:
    share = (boot - before.boot) / (after.boot - before.boot)
    requests = before.requests + share * (after.requests - before.requests)
    return Sample(boot, requests, before.corrupted + share * (after.corrupted - before.corrupted))
