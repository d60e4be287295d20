"""The sidecar's side of the journal: follows every file in the folder, and only reads.

- a file is opened without following links and read only if it is a regular file
- its descriptor is held (inodes are reused); another inode at the path is opened anew, after
  the last lines of the old one were taken
- whole lines are taken, up to the last newline; what comes after it is read again next time,
  because a writer whose disk is full cuts it off. A size below that newline: read from 0
- totals are kept by file id, each cell at its greatest, for as long as the reader lives: a
  file that vanished or cannot be read never lowers a counter
- the lock is probed and let go at once: free means dead, held without growth means not active
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .clock import boot_ns, clock_domain
from .fold import Fold
from .folder import SUFFIX
from .line import MOST_LINE_BYTES, LineError, ReportLine, StartLine, decode
from .source import Source

MOST_FIRST_LINE_BYTES = 1 << 20
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 18  # and so long is `lock` held: some 10 ms


@dataclass(slots=True)
class _Follower:
    """One open file, read up to `offset`."""

    descriptor: int
    identity: tuple[int, int]  # device and inode
    offset: int = 0  # up to and with the last newline
    stamp: tuple[int, int] = (-1, -1)  # size and mtime when it was last read
    head: Fold = field(default_factory=Fold)  # takes the first line only; sources fold the others
    skipping: bool = False  # inside a line that is too long to keep
    skipped_lines: int = 0
    refused: str | None = None  # why nothing of this file is counted

    @property
    def problem(self) -> str | None:
        if self.refused is None and self.skipped_lines:
            return f"{self.skipped_lines} lines were not understood and left out"
        return self.refused


class JournalReader:
    """Follows the files of one journal folder.

    `poll` is for one thread at a time. It waits for the disk without `lock`, and holds `lock`
    while sources change: another thread takes it to read them. `clock` is monotonic, in seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.clock = clock
        self.lock = threading.Lock()
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
        problems: dict[Path, str] = {}
        for path in self._paths(problems):
            try:
                problem = self._follow(path)
            except OSError as error:
                problem = error.strerror or str(error)
            if problem is not None:
                problems[path] = problem
        self._observe_locks()
        self._problems = problems

    def close(self) -> None:
        """Let all descriptors go; what was counted stays readable."""
        for path in tuple(self._followers):
            self._let_go(path)

    def _paths(self, problems: dict[Path, str]) -> list[Path]:
        """Return what is listed and what is followed: a listing may miss a file that is just renamed."""
        try:
            with os.scandir(self.folder) as entries:
                listed = {self.folder / entry.name for entry in entries if entry.name.endswith(SUFFIX)}
        except OSError as error:
            problems[self.folder] = f"the journal folder cannot be read: {error.strerror}"
            listed = set()
        return sorted(listed | set(self._followers))

    def _follow(self, path: Path) -> str | None:
        """Take what is new at `path`; returns what is wrong with it."""
        follower = self._followers.get(path)
        try:
            if follower is None or follower.identity != _identity(os.lstat(path)):
                follower = self._reopen(path)
        except FileNotFoundError:
            self._take_rest(path)
            self._let_go(path)
            return None
        self._consume(follower)
        return follower.problem

    def _reopen(self, path: Path) -> _Follower:
        self._take_rest(path)
        follower = _open_regular(path)
        self._let_go(path)
        self._followers[path] = follower
        return follower

    def _take_rest(self, path: Path) -> None:
        """Take the last lines of a file that is no longer at its path, as far as it can be read."""
        if path in self._followers:
            with suppress(OSError):
                self._consume(self._followers[path])

    def _let_go(self, path: Path) -> None:
        follower = self._followers.pop(path, None)
        if follower is not None:
            with suppress(OSError):  # it was only read: a failing close loses nothing
                os.close(follower.descriptor)

    def _consume(self, follower: _Follower) -> None:
        found = os.fstat(follower.descriptor)
        stamp = (found.st_size, found.st_mtime_ns)
        if stamp == follower.stamp:
            return
        if found.st_size < follower.offset:
            _start_over(follower)
        for lines in _whole_lines(follower):
            with self.lock:
                for raw in lines:
                    self._take(follower, raw)
        follower.stamp = stamp  # of before: what came while it was read makes it another

    def _take(self, follower: _Follower, raw: bytes) -> None:
        if follower.skipping:  # the end of a line whose beginning was thrown away
            follower.skipping = False
        elif follower.head.file is None:
            self._take_first(follower, raw)
        else:
            self._take_next(follower, raw, self._sources[follower.head.file.file])

    def _take_first(self, follower: _Follower, raw: bytes) -> None:
        if follower.refused is not None:
            return
        try:
            follower.head.take(raw)
        except LineError as error:
            follower.refused = str(error)
        first = follower.head.file
        if first is not None:
            self._sources.setdefault(first.file, Source(first.file, first.labels))

    def _take_next(self, follower: _Follower, raw: bytes, source: Source) -> None:
        try:
            line = decode(raw)
        except LineError:
            follower.skipped_lines += 1
            return
        if isinstance(line, StartLine | ReportLine):
            source.take(line, self._offset(source, line))

    def _offset(self, source: Source, line: StartLine | ReportLine) -> float:
        """Seconds from the line's boot clock to this reader's: exact under one boot, else on arrival."""
        life = line if isinstance(line, StartLine) else source.start
        comparable = life is not None and life.clock == self._domain and "unknown" not in self._domain
        boot = max(boot_ns(), line.boot_ns) if comparable else line.boot_ns
        return self.clock() - boot / 1e9

    def _observe_locks(self) -> None:
        held: dict[str, bool | None] = {}
        for follower in self._followers.values():
            first = follower.head.file
            if first is not None and not held.get(first.file):
                held[first.file] = _is_locked(follower.descriptor) if first.locked else None
        with self.lock:
            for source in self._sources.values():
                source.observe_lock(self.clock(), held=held.get(source.file, False))


def _open_regular(path: Path) -> _Follower:
    """Open a file to read it; the first look keeps devices and pipes from being opened at all."""
    _refuse_unless_regular(os.lstat(path))
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        found = os.fstat(descriptor)
        _refuse_unless_regular(found)
    except OSError:
        os.close(descriptor)
        raise
    return _Follower(descriptor, _identity(found))


def _refuse_unless_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return (found.st_dev, found.st_ino)


def _start_over(follower: _Follower) -> None:
    follower.offset, follower.head = 0, Fold()
    follower.skipping, follower.skipped_lines, follower.refused = False, 0, None


def _whole_lines(follower: _Follower) -> Iterator[list[bytes]]:
    """Yield the new whole lines, a chunk's worth at a time, and move `offset` past them."""
    offset, rest = follower.offset, b""
    while follower.refused is None and (chunk := os.pread(follower.descriptor, _CHUNK_BYTES, offset)):
        offset += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
        rest = _bounded(follower, rest)
        follower.offset = offset - len(rest)


def _bounded(follower: _Follower, rest: bytes) -> bytes:
    """Return the begun line to go on with, or nothing of one that is too long to be ours."""
    if follower.skipping:
        return b""
    if follower.head.file is None and len(rest) > MOST_FIRST_LINE_BYTES:
        follower.refused = f"the first line is not nanwatch's: it has more than {MOST_FIRST_LINE_BYTES} bytes"
        return b""
    if len(rest) > MOST_LINE_BYTES:
        follower.skipping = True
        follower.skipped_lines += 1
        return b""
    return rest


def _is_locked(descriptor: int) -> bool | None:
    """Say whether a writer holds the lock, by taking it shared for a moment; None: there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
