"""A file that is held for life: locked, looked at each tick, appended to, made anew.

It always ends with a whole line. A write that fails or comes short is cut back, and every write
is one line: a cut never takes a newline away that a reader has read past. Making it anew goes by
rename, so that at no time there is a file at the path that a starter could take, or half of one.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from . import descriptors
from .descriptors import Identity, identity_of
from .folder import Folder

OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE_FLAGS = OPEN_FLAGS | os.O_CREAT | os.O_EXCL
LOCK_TRIES, _LOCK_PAUSE_SECONDS = 3, 0.005
_NO_LOCKS_HERE = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS})


class NoLocksError(OSError):
    """The file system does not know flock."""


class ShortWriteError(OSError):
    """A write took only a part of the line: the disk or the quota is full."""


class Look(Enum):
    """What is at the path of a held file."""

    WHOLE = "our file, as we left it"
    RESIZED = "our file, and somebody else cut it or wrote to it"
    GONE = "nothing, or another file; or the engine closed our descriptor"


@dataclass(slots=True)
class HeldFile:
    """An open file of ours at `path`, which ends with a whole line at `size`."""

    descriptor: int
    path: Path
    identity: Identity
    size: int
    locked: bool = True  # False: the file system has no locks

    def look(self) -> Look:
        """Look at the path, and at the descriptor."""
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return Look.GONE
        if identity_of(found) != self.identity:
            return Look.GONE
        if not descriptors.is_still_open(self.descriptor, self.identity):
            return Look.GONE
        return Look.WHOLE if found.st_size == self.size else Look.RESIZED

    def append(self, line: bytes) -> None:
        """Write one line at the end, in one write(2).

        Raises:
            OSError: the file is as it was before, or `look` says that it is resized.
        """
        try:
            _write_whole(self.descriptor, line, self.path)
        except OSError:
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(line)

    def make_anew(self, content: Iterable[bytes], folder: Folder) -> None:
        """Put a new file with this content, in pieces, in place of the old one.

        Raises:
            OSError: the old file is held on, as it was.
        """
        temporary = self.path.with_suffix(".tmp")
        _unlink_if_there(temporary)  # a life that died in here left it
        try:
            descriptor = make(temporary, folder)
            with descriptors.closed_on_error(descriptor):
                identity, size = self._fill(descriptor, temporary, content)
        except BaseException:
            _unlink_if_there(temporary)
            raise
        old, old_identity = self.descriptor, self.identity
        self.descriptor, self.identity, self.size = descriptor, identity, size
        descriptors.close(old, old_identity)

    def close(self) -> None:
        """Let it go; its lock becomes free with that."""
        descriptors.close(self.descriptor, self.identity)

    def _fill(self, descriptor: int, temporary: Path, content: Iterable[bytes]) -> tuple[Identity, int]:
        """Lock and write the new file before it gets the name."""
        identity = identity_of(os.fstat(descriptor))
        if self.locked and not lock(descriptor):
            raise OSError(errno.EWOULDBLOCK, "locked by somebody else", str(temporary))
        size = sum(_write_whole(descriptor, piece, temporary) for piece in content)
        if self.look() is Look.GONE:  # never rename over another's file
            raise OSError(errno.ESTALE, "another file came to this place", str(self.path))
        os.rename(temporary, self.path)
        return identity, size


def make(path: Path, folder: Folder) -> int:
    """Make and open a new file with the rights that `folder` gives.

    Raises:
        FileExistsError: there is something at the path.
        OSError: it cannot be made.
    """
    descriptor = descriptors.open_file(path, _MAKE_FLAGS, folder.file_mode)
    with descriptors.closed_on_error(descriptor):
        folder.give_rights(descriptor)
    return descriptor


def lock(descriptor: int, tries: int = LOCK_TRIES) -> bool:
    """Take the lock for life; False: somebody held it at each of so many tries, 5 ms apart.

    Raises:
        NoLocksError: the file system has no locks.
    """
    for attempt in range(tries):
        if attempt:
            time.sleep(_LOCK_PAUSE_SECONDS)  # a reader may be probing
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                raise NoLocksError(error.errno, error.strerror) from error
            raise
        return True
    return False


def _write_whole(descriptor: int, data: bytes, path: Path) -> int:
    try:
        written = os.write(descriptor, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    if written != len(data):
        reason = f"wrote {written} of {len(data)} bytes: the disk or the quota is full"
        raise ShortWriteError(errno.ENOSPC, reason, str(path))
    return written


def _unlink_if_there(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
