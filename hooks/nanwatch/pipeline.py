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
from .watcher import Cells, Contained, Finish, Landed, Told, Watcher


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
        self._order = threading.RLock()  # observe and finish stand in one line
        self._is_busy = False  # in the midst of something under that lock
        self._late: deque[Step | Layout | Contained | tuple[str, ...]] = deque()  # came in the midst
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
        self._add(step)
        if not self._threads:
            self.start()

    def send_clean(self, layout: Layout) -> None:
        """Hand over a step that is known to be clean."""
        self._add(layout)
        if not self._threads:
            self.start()

    def send_finish(self, request_ids: tuple[str, ...]) -> None:
        """Hand over that these ids ended."""
        self._add(request_ids)

    def send_contained(self, cells: Cells) -> None:
        """Hand over what was done about a NaN; a process that sees no step may say so too."""
        self._add(Contained(0, cells))
        self.start()

    def _add(self, item: Step | Layout | Contained | tuple[str, ...]) -> None:
        """Give an item its place in the line.

        Python may collect garbage in the midst of this, and what it finalizes may end a request, in this
        very thread: such an item stands behind the one that it came into.
        """
        with self._order:
            if self._stopped:  # the probe was closed in another thread just now
                return
            if self._is_busy:
                self._late.append(item)
                return
            while True:
                self._is_busy = True
                try:
                    self._ticket += 1
                    self._place(item, self._ticket)
                finally:
                    self._is_busy = False
                if not self._late:
                    return
                item = self._late.popleft()

    def _place(self, item: Step | Layout | Contained | tuple[str, ...], ticket: int) -> None:
        """Let it wait for the watcher; or not, where it is clean already and nothing is before it.

        A step that was counted on the CPU is. Waking the watcher for it would take the interpreter from a
        host-bound engine in each step.
        """
        needs_no_watcher = not self._pending and self._caller_queue is None
        if isinstance(item, Layout):
            if needs_no_watcher:
                self.recorder.deliver_clean(item, ticket, time.time())
                return
            item = Step.now(item, counts=CLEAN)
        if isinstance(item, Step):
            item.ticket = ticket
            if needs_no_watcher and item.counts == CLEAN:
                self.recorder.deliver(Landed(item, None))
                return
            self._pending.append(item)
        elif isinstance(item, Contained):
            self._pending.append(item._replace(ticket=ticket))
        elif self._pending:
            self._pending.append(Finish(ticket, item))
        else:
            self.recorder.deliver(Finish(ticket, item))
            return
        self._watcher.nudge()

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
            if self._threads or self._stopped or self._is_busy:
                return
            self._is_busy = True
            try:
                self._threads = tuple(
                    threading.Thread(target=run, name=f"nanwatch-{name}", daemon=True)
                    for name, run in (("watcher", self._watcher.run), ("recorder", self.recorder.run))
                )
                for thread in self._threads:
                    thread.start()
            finally:
                self._is_busy = False
            if self._late:
                self._add(self._late.popleft())

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
