"""The two threads behind a probe, from the first step to the last line.

engine's thread --pending--> watcher --handed on--> recorder --> journal
                --a clean step that was counted on the CPU, or a finish, with nothing pending--^
"""

import threading
import time
from collections import deque
from queue import Full, Queue

from .attribution import Layout, charges_to_dict
from .findings import CLEAN
from .journal.writer import JournalWriter
from .ledger import Ledger
from .observation import Step
from .recorder import Recorder
from .watcher import Contained, Finish, Landed, Told, Watcher


class Pipeline:
    """Hand-over and threads of one life of one source; a forked child makes its own."""

    def __init__(
        self,
        ledger: Ledger,
        writer: JournalWriter,
        caller_queue: Queue[dict[str, int]] | None,
        *,
        fail_fast: bool,
    ) -> None:
        self.landing = threading.Lock()
        self.recorder = Recorder(ledger, writer, fail_fast=fail_fast)
        self._caller_queue = caller_queue
        self._pending: deque[Step | Told] = deque()
        self._watcher = Watcher(self._pending, self.landing, self._hand_on, self.recorder.note_fault)
        self._stopped = False
        self._threads: tuple[threading.Thread, ...] = ()
        self._order = threading.Lock()  # observe and finish stand in one line
        self._ticket = 0

    @property
    def ticket(self) -> int:
        """The place of the newest item."""
        return self._ticket

    def write_first_line(self) -> None:
        """Begin the file with every total at 0, so that a counter is seen before its first event."""
        self.recorder.commit()

    def send_step(self, step: Step) -> None:
        """Hand a step over; gives it its place in the line."""
        with self._order:
            if self._stopped:  # the probe was closed in another thread just now
                return
            self._ticket = step.ticket = self._ticket + 1
            if step.counts == CLEAN and self._watcher_is_passed_by():
                self.recorder.deliver(Landed(step, None))
            else:
                self._pending.append(step)
                self._watcher.nudge()
        if not self._threads:
            self.start()

    def send_clean(self, layout: Layout) -> None:
        """Hand over a step that is known to be clean."""
        with self._order:
            if self._stopped:
                return
            self._ticket = ticket = self._ticket + 1
            if not self._pending and self._caller_queue is None:  # as in _watcher_is_passed_by
                self.recorder.deliver_clean(layout, ticket, time.time())
            else:
                now = time.monotonic_ns()
                self._pending.append(Step(layout, now, time.time(), None, ticket=ticket, counts=CLEAN))
                self._watcher.nudge()
        if not self._threads:
            self.start()

    def _watcher_is_passed_by(self) -> bool:
        """Whether what is clean already, as a step counted on the CPU is, goes straight to the recorder.

        Waking the watcher for it would take the interpreter from a host-bound engine in each step.
        """
        return not self._pending and self._caller_queue is None

    def send_finish(self, request_ids: tuple[str, ...]) -> None:
        """Hand over that these ids ended."""
        with self._order:
            if self._stopped:
                return
            self._ticket += 1
            finish = Finish(self._ticket, request_ids)
            if not self._pending:
                self.recorder.deliver(finish)
                return
            self._pending.append(finish)
        self._watcher.nudge()

    def send_contained(self, cells: tuple[tuple[str, int], ...]) -> None:
        """Hand over what was done about a NaN; a process that sees no step may say so too."""
        with self._order:
            if self._stopped:
                return
            self._ticket += 1
            self._pending.append(Contained(self._ticket, cells))
        self._watcher.nudge()
        self.start()

    def wait_until_written(self, ticket: int, timeout: float) -> bool:
        """Wait until a journal line holds everything up to `ticket`; at once if that is nothing."""
        if ticket == 0:
            return True
        self.start()
        return self.recorder.wait_until_written(ticket, timeout)

    def stop(self, timeout: float) -> None:
        """Read what has landed, write a last line and end the threads, within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._order:
            self._stopped = True
        if not self._threads:
            self._watcher.drain()
            self.recorder.stop()
            self.recorder.run()
            return
        watcher, recorder = self._threads
        self._watcher.stop()
        watcher.join(max(0.0, deadline - time.monotonic()))
        self.recorder.stop()
        recorder.join(max(0.0, deadline - time.monotonic()))

    def start(self) -> None:
        """Start the threads, if they do not run yet."""
        if self._threads:
            return
        with self._order:
            if self._threads or self._stopped:
                return
            self._threads = tuple(
                threading.Thread(target=run, name=f"nanwatch-{name}", daemon=True)
                for name, run in (("watcher", self._watcher.run), ("recorder", self.recorder.run))
            )
            for thread in self._threads:
                thread.start()

    def _hand_on(self, item: Landed | Told) -> None:
        if self._caller_queue is not None and isinstance(item, Landed):
            self._give_to_caller(item, self._caller_queue)
        self.recorder.deliver(item)

    def _give_to_caller(self, landed: Landed, to: Queue[dict[str, int]]) -> None:
        ids = landed.step.layout.request_ids or ()
        found = charges_to_dict(landed.charges, ids) if landed.charges else dict.fromkeys(ids, 0)
        try:
            to.put_nowait(found)
        except Full:
            self.recorder.count_queue_full()
        except Exception as error:  # noqa: BLE001  the caller's queue may be of any kind, and fail in any way
            self.recorder.count_queue_full()
            self.recorder.note_fault(error, "the queue that the probe was given")
