"""The recorder's thread: folds what the watcher hands on, and appends it to the journal.

It wakes four times a second, or at once for a new corrupted request; it writes at most one line
each 5 ms, and one a second when nothing happens, which is the heartbeat. A write that fails is
logged once and tried again at each tick; what is new stays in memory until then.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable
from threading import Condition, Event

from .announce import Announcer
from .attribution import Layout
from .backlog import Backlog, CleanSteps
from .journal.clock import boot_ns
from .journal.line import CorruptedRequest
from .journal.writer import JournalWriter
from .ledger import Ledger
from .watcher import Landed, Told

TICK_SECONDS = 0.25
HEARTBEAT_SECONDS = 1.0
PAUSE_SECONDS = 0.005  # between two lines

logger = logging.getLogger("nanwatch")


class Recorder:
    """Folds and writes for one life of one source."""

    def __init__(self, ledger: Ledger, writer: JournalWriter, *, fail_fast: bool = False) -> None:
        self._ledger, self._writer, self._fail_fast = ledger, writer, fail_fast
        self._announcer = Announcer()
        self._backlog = Backlog()
        self._dropped: deque[str] = deque()  # reasons, from any thread
        self._queue_full = 0
        self._wake = Event()
        self._stopping = False
        self._written = Condition()
        self._folded_ticket = 0
        self._refused_ticket = 0  # of the last step for which the backlog had no room
        self._written_ticket = -1  # nothing was written yet, not even the first line
        self._changed = self._urgent = False
        self._delays_from_ns: list[int] = []  # when the steps of new corrupted requests were observed
        self._committed_at = float("-inf")
        self._failing = False
        self._written_corrupted = 0
        self._faults: set[str] = set()  # kinds that the log knows of

    def deliver(self, item: Landed | Told) -> None:
        """Take one item; wakes the thread only for a step that holds a NaN."""
        if not isinstance(item, Landed):
            self._backlog.add(item)
        elif item.charges is not None:
            self._backlog.add(item)
            self._wake.set()
        elif item.step.found_nothing:
            self.deliver_clean(item.step.layout, item.step.ticket, item.step.wall_seconds)
        elif self._backlog.is_full:
            self._refuse(item.step.ticket)
        else:
            self._backlog.add(item)

    def deliver_clean(self, layout: Layout, ticket: int, wall_seconds: float) -> None:
        """Take a step in which nothing was found."""
        if not self._backlog.add_clean(layout, ticket, wall_seconds):
            self._refuse(ticket)

    def _refuse(self, ticket: int) -> None:
        self.count_dropped("backlog")
        self._refused_ticket = ticket

    def count_dropped(self, reason: str, steps: int = 1) -> None:
        """Count steps that nobody looks at; from any thread."""
        self._dropped.extend([reason] * steps)

    def count_queue_full(self) -> None:
        """Count a per-request dict that the caller's queue did not take."""
        self._queue_full += 1

    def note_fault(self, error: Exception, where: str = "nanwatch itself", steps: int = 1) -> None:
        """Log a fault of ours once for each kind, and count the steps that it cost."""
        self.count_dropped("error", steps)
        kind = f"{where}: {type(error).__name__}"
        if kind not in self._faults:
            self._faults.add(kind)
            logger.error(
                "a step was not looked at, the engine runs on; more of the same are only counted. %s: %s",
                kind,
                error,
                exc_info=error,
            )

    def wait_until_written(self, ticket: int, timeout: float) -> bool:
        """Ask for a line now, and wait until one holds everything up to `ticket`."""
        deadline = time.monotonic() + timeout
        with self._written:
            while self._written_ticket < ticket:
                self._urgent = True
                self._wake.set()
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._written.wait(min(PAUSE_SECONDS, remaining))
        return True

    def stop(self) -> None:
        """Let the thread end after a last line."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Fold and write until stopped."""
        while not self._stopping:
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()
            self.tick()
        self.tick(last=True)
        self._say_what_was_never_written()
        self._writer.close()

    def tick(self, *, last: bool = False) -> None:
        """Fold all that was handed on, and write a line if one is due."""
        self._fold()
        age = time.monotonic() - self._committed_at
        if self._urgent and not self._failing and age < PAUSE_SECONDS:
            time.sleep(PAUSE_SECONDS - age)
            self._fold()
        at_once = last or (self._urgent and not self._failing)
        if at_once or (self._changed and age >= TICK_SECONDS) or age >= HEARTBEAT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Write one line with everything folded so far; a failure is counted, never raised."""
        ticket = self._folded_ticket
        self._changed = self._urgent = False
        self._committed_at = time.monotonic()
        try:
            self._writer.commit(self._ledger.totals, self._ledger.last_step_seconds)
        except OSError as error:
            self._note_failure(error)
            return
        except Exception as error:  # noqa: BLE001  nothing that a line holds may end the thread
            self.note_fault(error, "the journal's line")
            return
        self._note_success()
        self._count_delays()
        with self._written:
            self._written_ticket = ticket
            self._written.notify_all()

    def _fold(self) -> None:
        now = boot_ns()
        refused = self._refused_ticket  # read first: what was handed over before it is taken now
        for item in self._backlog.take():
            self._changed = True
            try:
                self._take(item, now)
            except Exception as error:  # noqa: BLE001  one item that cannot be folded is no reason to stop
                self.note_fault(error, steps=item.steps if isinstance(item, CleanSteps) else 1)
        self._folded_ticket = max(self._folded_ticket, refused)
        for reason, steps in Counter(_drain(self._dropped)).items():
            self._ledger.count_dropped(reason, steps)
            self._changed = True
        self._ledger.totals.queue_full = self._queue_full

    def _take(self, item: Landed | Told | CleanSteps, now: int) -> None:
        self._folded_ticket = item.step.ticket if isinstance(item, Landed) else item.ticket
        changes = self._ledger.take(item, now)
        for request in (*changes.known, *changes.new):
            self._writer.put(request)
        if not isinstance(item, Landed) or item.charges is None:
            return
        if changes.new:
            self._note_new(item, changes.new)
        if self._fail_fast and (item.charges.requests or item.charges.unattributed_nan_rows):
            self._urgent = True
            self._ledger.totals.fail_fast_trips += 1

    def _note_new(self, item: Landed, new: list[CorruptedRequest]) -> None:
        self._urgent = True
        self._delays_from_ns.extend([item.step.observed_ns] * len(new))
        self._announcer.announce(new)

    def _count_delays(self) -> None:
        now = time.monotonic_ns()
        for observed_ns in self._delays_from_ns:
            self._ledger.totals.add_delay((now - observed_ns) / 1e9)
            self._changed = True  # the line that was just written cannot hold its own delay
        self._delays_from_ns.clear()

    def _note_failure(self, error: OSError) -> None:
        self._ledger.totals.journal_errors += 1
        self._changed = True
        if not self._failing:
            logger.error(
                "nanwatch cannot write its journal: %s. The engine runs on, counting goes on in memory, "
                "and writing is tried again every %s s.",
                error,
                TICK_SECONDS,
            )
        self._failing = True

    def _say_what_was_never_written(self) -> None:
        lost = self._ledger.totals.corrupted_requests - self._written_corrupted
        if self._failing and lost:
            logger.error("nanwatch ends, and %d corrupted requests were never written to its journal", lost)

    def _note_success(self) -> None:
        self._written_corrupted = self._ledger.totals.corrupted_requests
        if self._written_ticket < 0:
            logger.info("nanwatch writes its journal: %s", self._writer.path)
        if self._failing:
            logger.warning("nanwatch writes its journal again: %s", self._writer.path)
        self._failing = False


def _drain(reasons: deque[str]) -> Iterable[str]:
    while reasons:
        yield reasons.popleft()
