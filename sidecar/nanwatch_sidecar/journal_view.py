"""The journal as it was at the last poll, shared by all routes.

One thread of its own polls, four times a second and whenever a route asks. A disk that hangs holds
that thread alone: routes wait for it with a bound and go on with the values they have.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from nanwatch.journal.reader import JournalReader
from nanwatch.journal.source import Source

from .disagreement import Disagreements

POLL_SECONDS = 0.25
PATIENCE_SECONDS = 1.5  # a scrape answers within 2 s, with the last values if need be

logger = logging.getLogger(__name__)


class JournalView:
    """Owns a reader; `on_poll` is told the corrupted requests so far after each poll."""

    def __init__(self, reader: JournalReader, on_poll: Callable[[int], None] | None = None) -> None:
        self.lock = reader.lock  # whoever looks at `sources` or `disagreements` holds it
        self.disagreements = Disagreements()
        self._reader, self._on_poll = reader, on_poll
        self._turn = threading.Condition()
        self._begun = self._ended = 0  # polls
        self._begun_at = 0.0
        self._asked = True
        self._stopping = False
        self._failure: str | None = None
        self._unusable: str | None = None  # as it was said last
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    @property
    def folder(self) -> Path:
        """The journal's folder, as an absolute path."""
        return self._reader.folder

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source seen so far; drills left out."""
        return self._reader.sources

    @property
    def drills(self) -> tuple[Source, ...]:
        """What `nanwatch drill` wrote, to be shown as nothing but a drill."""
        return self._reader.drills

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the folder, its files, or the reading of them."""
        own = (self._failure, self._hanging())
        return (*(problem for problem in own if problem is not None), *self._reader.problems)

    def now(self) -> float:
        """Return the time on the clock that the sources are dated with."""
        return self._reader.clock()

    def start(self) -> None:
        """Begin to poll; once is enough."""
        with self._turn:
            if self._thread.ident is None:
                self._thread.start()

    def refresh(self, timeout: float = PATIENCE_SECONDS) -> bool:
        """Wait for a poll that begins after this call; False: it did not come back in time."""
        self.start()
        with self._turn:
            wanted = self._begun + 1
            self._asked = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._ended >= wanted or self._stopping, timeout)
            return self._ended >= wanted

    def stop(self) -> None:
        """Let nobody wait any more, and end after a last poll; returns at once."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()

    def close(self, timeout: float = 0.3) -> None:
        """Stop, and wait for the last poll, but not for a disk that hangs."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        last = False
        while not last:
            with self._turn:
                self._turn.wait_for(lambda: self._asked or self._stopping, POLL_SECONDS)
                last, self._asked = self._stopping, False
                self._begun += 1
                self._begun_at = self.now()
            self._poll()
            with self._turn:
                self._ended += 1
                self._turn.notify_all()
        self._reader.close()

    def _poll(self) -> None:
        try:
            self._reader.poll()
            self._say_whether_usable()
            with self.lock:
                self.disagreements.update(self.sources, self.now())
                corrupted = sum(source.corrupted_requests for source in self.sources)
            if self._on_poll is not None:
                self._on_poll(corrupted)
        except Exception as error:
            failure = f"reading the journal failed: {type(error).__name__}: {error}"
            if failure != self._failure:
                logger.exception("%s; the last values are served on", failure)
            self._failure = failure
        else:
            self._failure = None

    def _say_whether_usable(self) -> None:
        """Log it when the folder is there but none, or closed to us: a wrong NANWATCH_JOURNAL looks so.

        One that is not there yet is as it should be: the engine makes it.
        """
        found = self._reader.unusable
        if found is not None and found != self._unusable:
            logger.warning("%s: %s; looking on. NANWATCH_JOURNAL names the folder", self.folder, found)
        self._unusable = found

    def _hanging(self) -> str | None:
        """Say so when the poll that is now under way takes longer than any route waits."""
        seconds = self.now() - self._begun_at
        if self._begun == self._ended or seconds < PATIENCE_SECONDS:
            return None
        return f"{self.folder}: reading it has not come back for {seconds:.0f} s; values are from before that"
