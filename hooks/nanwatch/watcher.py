"""The watcher's thread: looks at host memory until a step's counts have landed, then hands it on.

It makes no CUDA call and builds no object for a clean step. Steps and finishes are handed on in
the order in which the engine's thread made them, so that an id that is used again while its last
step is in flight is charged right. A step that does not land within LOST_SECONDS is dropped.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock
from typing import NamedTuple

from .attribution import Charges, attribute
from .findings import counts_of, is_clean
from .observation import Step

POLL_SECONDS = 0.002
PARK_AFTER_SECONDS = 0.1
LOST_SECONDS = 30.0


Cells = tuple[tuple[str, int], ...]


class Finish(NamedTuple):
    """These ids ended; they stand in the same order as the steps."""

    ticket: int
    request_ids: tuple[str, ...]


class Contained(NamedTuple):
    """What was done about a NaN: cells of the totals, and by how much each grew."""

    ticket: int
    cells: Cells


class Landed(NamedTuple):
    """One step whose counts are there, and where its NaNs belong: None for a clean one."""

    step: Step
    charges: Charges | None


Told = Finish | Contained  # what needs no landing
Deliver = Callable[[Landed | Told], None]


class Watcher:
    """Reads the steps of one probe as they land."""

    def __init__(
        self,
        pending: deque[Step | Told],
        landing: Lock,
        deliver: Deliver,
        failed: Callable[[Exception], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._pending, self._landing, self._deliver, self._failed = pending, landing, deliver, failed
        self._clock_ns = clock_ns
        self._wake = Event()
        self._parked = False
        self._stopping = False

    def nudge(self) -> None:
        """Tell the watcher that something is pending; costs nothing while it is awake."""
        if self._parked:
            self._wake.set()

    def stop(self) -> None:
        """Let the thread end once nothing that has landed is left."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Poll until stopped."""
        busy_at = time.monotonic()
        while True:
            if self._drain_safely() or self._pending:
                busy_at = time.monotonic()
            if self._stopping and not self._has_landed():
                return
            if time.monotonic() - busy_at > PARK_AFTER_SECONDS:
                self._park()
            else:
                time.sleep(POLL_SECONDS)

    def _drain_safely(self) -> int:
        """As `drain`; a step that cannot even be looked at is dropped, so that it is not met again."""
        try:
            return self.drain()
        except Exception as error:  # noqa: BLE001  see _hand_on
            self._failed(error)
            self._pending.popleft()
            return 1

    def drain(self) -> int:
        """Hand on, in order, all that has landed; returns how many.

        An item leaves the line only after it was handed on: an empty line means that nothing is before.
        """
        done = 0
        while self._pending and self._has_landed():
            self._hand_on(self._pending[0])
            self._pending.popleft()
            done += 1
        return done

    def _hand_on(self, item: Step | Told) -> None:
        """Hand one item on; whatever goes wrong with it, the next ones are looked at."""
        try:
            self._deliver(self._read(item) if isinstance(item, Step) else item)
        except Exception as error:  # noqa: BLE001  a thread that died would leave a healthy face and count nothing
            self._failed(error)

    def _has_landed(self) -> bool:
        head = self._pending[0] if self._pending else None
        if not isinstance(head, Step) or head.land(self._landing):
            return head is not None
        if self._clock_ns() - head.observed_ns < LOST_SECONDS * 1e9:
            return False
        with self._landing:
            head.lose()
        return True

    def _read(self, step: Step) -> Landed:
        if step.counts is None or is_clean(step.counts):
            return Landed(step, None)
        return Landed(step, attribute(counts_of(step.counts), step.layout))

    def _park(self) -> None:
        """Sleep until nudged. Parked is said before the last look, so that no step is overlooked."""
        self._parked = True
        if not self._pending and not self._stopping:
            self._wake.wait()
        self._wake.clear()
        self._parked = False
