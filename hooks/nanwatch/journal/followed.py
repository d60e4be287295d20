"""One file as the reader follows it: whole lines, each once, through a descriptor that is held.

- opened without following links, and only if it is a regular file
- whole lines are taken, up to the last newline; what comes after it is read again next time,
  because a writer whose disk is full cuts it off
- a size below that newline: read from 0
- a line that is too long to be ours is thrown away as it comes
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from .fold import Fold
from .line import MOST_LINE_BYTES, LineError

MOST_FIRST_LINE_BYTES = 1 << 20
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 18  # some 10 ms of folding


@dataclass(slots=True)
class Followed:
    """An open file, read up to `offset`."""

    descriptor: int
    identity: tuple[int, int]  # device and inode
    offset: int = 0  # up to and with the last newline
    head: Fold = field(default_factory=Fold)  # takes the first line only; sources fold the others
    skipped_lines: int = 0
    refused: str | None = None  # why nothing of this file is counted
    _stamp: tuple[int, int] = (-1, -1)  # size and mtime when it was last read
    _skipping: bool = False  # inside a line that is too long to keep

    @classmethod
    def open(cls, path: str) -> Self:
        """Open a file to read it; the first look keeps devices and pipes from being opened at all.

        Raises:
            OSError: it is gone, cannot be opened, or is no regular file.
        """
        _refuse_unless_regular(os.lstat(path))
        descriptor = os.open(path, _OPEN_FLAGS)
        try:
            found = os.fstat(descriptor)
            _refuse_unless_regular(found)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, _identity(found))

    def is_at(self, path: str) -> bool:
        """Say whether this file is the one at `path`.

        Raises:
            FileNotFoundError: nothing is there.
        """
        return _identity(os.lstat(path)) == self.identity

    @property
    def problem(self) -> str | None:
        """What is wrong with it, in words."""
        if self.refused is None and self.skipped_lines:
            return f"{self.skipped_lines} lines were not understood and left out"
        return self.refused

    def new_lines(self) -> Iterator[list[bytes]]:
        """Yield the new whole lines, a chunk's worth at a time."""
        found = os.fstat(self.descriptor)
        stamp = (found.st_size, found.st_mtime_ns)
        if stamp == self._stamp:
            return
        if found.st_size < self.offset:
            self._start_over()
        yield from self._read_on()
        self._stamp = stamp  # of before: what came while it was read makes it another

    def take_first(self, raw: bytes) -> None:
        """Take the first line, or refuse the file."""
        try:
            self.head.take(raw)
        except LineError as error:
            self.refused = str(error)

    def is_locked(self) -> bool | None:
        """Say whether a writer holds the lock, by taking it shared for a moment; None: there are no locks."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Let it go; it was only read, so that a failing close loses nothing."""
        with suppress(OSError):
            os.close(self.descriptor)

    def _start_over(self) -> None:
        self.offset, self.head = 0, Fold()
        self._skipping, self.skipped_lines, self.refused = False, 0, None

    def _read_on(self) -> Iterator[list[bytes]]:
        offset, begun = self.offset, bytearray()  # grown in place: a line of 50 MB is not copied 200 times
        while self.refused is None and (chunk := os.pread(self.descriptor, _CHUNK_BYTES, offset)):
            offset += len(chunk)
            begun += chunk
            lines = _cut_whole_lines(begun, len(begun) - len(chunk))
            if self._skipping and lines:
                self._skipping = False
                del lines[0]  # the end of a line whose beginning was thrown away
            yield lines
            if self._is_too_long(len(begun)):
                begun.clear()
            self.offset = offset - len(begun)

    def _is_too_long(self, begun_bytes: int) -> bool:
        """Say whether a begun line cannot be ours, and is thrown away as it comes."""
        if self._skipping:
            return True
        if self.head.file is None and begun_bytes > MOST_FIRST_LINE_BYTES:
            self.refused = f"the first line is not nanwatch's: it has more than {MOST_FIRST_LINE_BYTES} bytes"
            return True
        if begun_bytes > MOST_LINE_BYTES:
            self._skipping = True
            self.skipped_lines += 1
            return True
        return False


def _cut_whole_lines(begun: bytearray, looked_at: int) -> list[bytes]:
    """Take the whole lines out of `begun`, whose first `looked_at` bytes hold no newline."""
    end = begun.rfind(b"\n", looked_at)
    if end < 0:
        return []
    lines = bytes(begun[:end]).split(b"\n")
    del begun[: end + 1]
    return lines


def _refuse_unless_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return (found.st_dev, found.st_ino)
