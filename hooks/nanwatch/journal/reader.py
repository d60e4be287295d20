"""The sidecar's side of the journal: follows every file in the folder, and only reads.

- a file is opened without following links and read only if it is a regular file
- its descriptor is held (inodes are reused); another inode at the path is opened anew
- whole lines are taken, up to the last newline; a size below the offset means read from 0
- totals are kept by file id, each cell at its greatest, for as long as the reader lives: a
file that vanished or cannot be read never lowers a counter
- the lock is probed and let go at once: free means dead, held without growth means not active
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .clock import clock_domain
from .fold import Fold
from .folder import SUFFIX, is_at
from .line import MOST_LINE_BYTES, LineError, ReportLine, StartLine
from .source import Source

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class _Follower:
    """One path, read up to `offset`; `rest` is the begun line after the last newline."""

    path: Path
    descriptor: int
    offset: int = 0
    rest: bytes = b""
    skipping: bool = False  # inside a line that is too long to keep
    fold: Fold = field(default_factory=Fold)
    refused: str | None = None  # why nothing of this file is counted


class JournalReader:
    """Follows the files of one journal folder.

    Not for several threads at once. `clock` is monotonic and in seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._clock = clock
        self._domain = clock_domain()
        self._followers: dict[Path, _Follower] = {}
        self._sources: dict[str, Source] = {}
        self._problems: dict[Path, str] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source seen since the reader lives, in the order of their appearance."""
        return tuple(self._sources.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read at the last poll, one sentence each."""
        return tuple(f"{path}: {reason}" for path, reason in sorted(self._problems.items()))

    def poll(self) -> None:
        """Take what is new in every file; never raises for the state of the folder."""
        self._problems = {}
        for path in self._list():
            try:
                self._follow(path)
            except OSError as error:
                self._problems[path] = error.strerror or str(error)
        for follower in self._followers.values():
            self._observe_life(follower)

    def close(self) -> None:
        """Let all descriptors go; what was counted stays readable."""
        for follower in self._followers.values():
            os.close(follower.descriptor)
        self._followers.clear()

    def _list(self) -> list[Path]:
        try:
            with os.scandir(self.folder) as entries:
                return sorted(self.folder / entry.name for entry in entries if entry.name.endswith(SUFFIX))
        except OSError as error:
            self._problems[self.folder] = f"the journal folder cannot be read: {error.strerror}"
            return []

    def _follow(self, path: Path) -> None:
        follower = self._followers.get(path)
        if follower is None or not is_at(path, follower.descriptor):
            follower = self._reopen(path)
        if follower.refused is None:
            self._consume(follower)
        if follower.refused is not None:
            self._problems[path] = follower.refused

    def _reopen(self, path: Path) -> _Follower:
        descriptor = os.open(path, _OPEN_FLAGS)
        follower = _Follower(path, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            follower.refused = "not a regular file"
        old = self._followers.get(path)
        self._followers[path] = follower
        if old is not None:
            os.close(old.descriptor)
        return follower

    def _consume(self, follower: _Follower) -> None:
        if os.fstat(follower.descriptor).st_size < follower.offset:
            follower.offset, follower.rest, follower.skipping, follower.fold = 0, b"", False, Fold()
        while chunk := os.pread(follower.descriptor, _CHUNK_BYTES, follower.offset):
            follower.offset += len(chunk)
            *whole, follower.rest = (follower.rest + chunk).split(b"\n")
            for raw in whole:
                self._take(follower, raw)
            self._bound_rest(follower)

    def _bound_rest(self, follower: _Follower) -> None:
        if len(follower.rest) > MOST_LINE_BYTES or (follower.skipping and follower.rest):
            follower.rest, follower.skipping = b"", True
            follower.fold.skipped_lines += 1

    def _take(self, follower: _Follower, raw: bytes) -> None:
        if follower.skipping:  # the end of a line whose beginning was thrown away
            follower.skipping = False
            return
        if follower.refused is not None:
            return
        try:
            line = follower.fold.take(raw)
        except LineError as error:
            follower.refused = str(error)
            return
        first = follower.fold.file
        if first is None or line is None:
            return
        source = self._sources.get(first.file)
        if source is None:
            source = self._sources[first.file] = Source(first.file, first.labels)
        if isinstance(line, StartLine | ReportLine):
            source.take(line, self._seconds_of(source, line))

    def _seconds_of(self, source: Source, line: StartLine | ReportLine) -> float:
        """When the line was written, on this reader's clock: exact under one boot, else on arrival."""
        domain = line.clock if isinstance(line, StartLine) else source.start.clock if source.start else ""
        now = self._clock()
        if domain != self._domain:
            return now
        age = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - line.boot_ns) / 1e9
        return now - max(0.0, age)

    def _observe_life(self, follower: _Follower) -> None:
        first = follower.fold.file
        source = self._sources.get(first.file) if first else None
        if first is None or source is None:
            return
        held = _is_locked(follower.descriptor) if first.locked else True
        source.observe_life(follower.path, held=held, now=self._clock())


def _is_locked(descriptor: int) -> bool:
    """Say whether a writer holds the lock, by taking it shared for a moment."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # no locks here after all: the heartbeat alone tells
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
