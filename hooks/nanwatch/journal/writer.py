"""The one writer of a journal file: appends whole lines, renews and heals the file.

What has to be written depends on what was claimed, and on what a look at the path finds each tick:
    a new file, or after healing our own again    ALL       everything, by rename
    the file of lives that ended                  START     a start line, then a report
    our file as we left it                        NEWS      a report
    ... and past 1 MB and twice the snapshot      NEWS      a report, then everything: renewal
    our file, cut or grown by somebody else       ALL
    no file of ours                               claim again, under the same file id
A line is one write(2): what it returned for survives a SIGKILL. Everything written is in memory
too, so that no reader sees a total fall.
"""

import logging
import os
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from .claim import claim
from .folder import Folder
from .held import HeldFile, Look
from .line import CorruptedRequest, Labels, StartLine
from .memory import Memory
from .totals import Totals

RENEW_PAST_BYTES = 1_000_000
RENEW_RETRY_SECONDS = 5.0

logger = logging.getLogger("nanwatch")


class _Due(Enum):
    """What the next commit has to write."""

    ALL = auto()
    START = auto()
    NEWS = auto()


class JournalWriter:
    """Appends what one source counted to the file that it holds for life.

    Not for several threads at once: the recorder's thread is the one that calls it.
    """

    def __init__(
        self,
        folder: Folder,
        labels: Labels,
        start: StartLine,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._labels, self._monotonic = folder, labels, monotonic
        self._memory = Memory(labels, start)
        self._file: HeldFile | None = None
        self._due = _Due.ALL
        self._claimed_before = self._locked = False
        self._snapshot_bytes = 0
        self._renew_not_before = 0.0
        self._pid = os.getpid()

    @property
    def path(self) -> Path | None:
        """The file held now, None while there is none."""
        return self._file.path if self._file else None

    @property
    def unsaved(self) -> int:
        """Corrupted requests that are in memory only."""
        return self._memory.unsaved

    def put(self, request: CorruptedRequest) -> None:
        """Keep a corrupted request, new or changed, for the next commit."""
        self._memory.put(request)

    def commit(self, own: Totals, last_step_seconds: float = 0.0) -> None:
        """Write one line with the totals of this life so far and all that was put since the last.

        `last_step_seconds` is the wall clock of the last step, 0 before the first.

        Raises:
            OSError: nothing of it counts as written; all of it is kept for the next commit.
        """
        if os.getpid() != self._pid:
            raise OSError("a forked child counts as a new source: it makes a writer of its own")
        self._memory.count(own, last_step_seconds)
        file = self._held_file()
        if self._due is _Due.ALL:
            self._write_all(file)
            return
        if self._due is _Due.START:
            file.append(self._memory.start_line())
            self._due = _Due.NEWS
        file.append(self._memory.news())
        self._memory.note_written()
        self._renew_if_due(file)

    def close(self) -> None:
        """Let the file go: its lock becomes free, which tells readers that this life has ended."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _held_file(self) -> HeldFile:
        """Return the file that is held, after a look at it; claims one where there is none."""
        look = self._file.look() if self._file else Look.GONE
        if look is Look.RESIZED:
            self._due = _Due.ALL
        if self._file is None or look is Look.GONE:
            self.close()
            self._folder.prepare()
            self._file = self._heal() if self._claimed_before else self._claim()
        return self._file

    def _claim(self) -> HeldFile:
        found = claim(self._folder, self._labels)
        if found.fold.file is not None:
            self._memory.go_on_from(found.fold)
            self._due = _Due.START
        self._claimed_before, self._locked = True, found.file.locked
        return found.file

    def _heal(self) -> HeldFile:
        """Start again from memory, under the same file id."""
        own = self._memory.file_id
        found = claim(self._folder, self._labels, only_file_id=own, was_locked=self._locked)
        self._due = _Due.ALL
        return found.file

    def _write_all(self, file: HeldFile) -> None:
        file.make_anew(self._memory.snapshot(locked=file.locked), self._folder)
        self._memory.note_written()
        self._snapshot_bytes = file.size
        self._due = _Due.NEWS

    def _renew_if_due(self, file: HeldFile) -> None:
        due = file.size > RENEW_PAST_BYTES and file.size > 2 * self._snapshot_bytes
        if not due or self._monotonic() < self._renew_not_before:
            return
        try:
            self._write_all(file)
        except OSError as error:
            self._note_failed_renewal(error)

    def _note_failed_renewal(self, error: OSError) -> None:
        if self._memory.failed_renewals == 0:
            logger.warning(
                "nanwatch cannot renew its journal file, which grows until it can: %s; tried every %s s",
                error,
                RENEW_RETRY_SECONDS,
            )
        self._memory.failed_renewals += 1
        self._renew_not_before = self._monotonic() + RENEW_RETRY_SECONDS
