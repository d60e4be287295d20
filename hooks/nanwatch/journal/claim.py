"""Getting hold of a file to write: a new one, or a dead one to go on with.

The rules, in this order; each was found by killing a prototype at every system call:
    1. for k = 0, 1, ... open `<slot>-<k>.jsonl`; it must be a regular file of ours with one link
    2. lock it; three tries 5 ms apart, because a reader may be probing the lock
    3. look at the path again: another inode means that a renewal came between, so the same k again
    4. held by somebody, foreign, unreadable or of a newer major version: the next k
    5. no whole first line: begin it; else fold it and cut a half-written last line
Nothing is ever unlinked or taken over: a file has one locked writer for life. Where the file
system has no locks a file of a random name is made, which is never continued.
"""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from . import descriptors
from .fold import Fold
from .folder import SUFFIX, Folder, is_at
from .line import MOST_LINE_BYTES, Labels, LineError

OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_FILES = 4096  # per slot; past that something makes files faster than anything can read them
_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 3, 0.005
_INODE_TRIES = 100
_NO_LOCKS_HERE = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS})
_NOT_OURS = frozenset({errno.ELOOP, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENXIO})
_CHUNK_BYTES = 1 << 20


class NoLocksError(OSError):
    """The file system does not know flock."""


@dataclass(slots=True)
class Claim:
    """An open, locked file of ours, and what it held."""

    descriptor: int
    path: Path
    fold: Fold
    size: int  # bytes up to and with the last newline; 0: the next write begins the file
    locked: bool = True


def slot_of(labels: Labels) -> str:
    """Return the part of a file name that is one for all lives of the same source."""
    text = "\0".join(getattr(labels, name) for name in Labels.__slots__)
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def claim(folder: Folder, labels: Labels, *, only_file_id: str | None = None) -> Claim:
    """Return the first file of this source's slot that is free, locked for life.

    With `only_file_id` (healing) a file is taken only if it is new or holds that id.

    Raises:
        OSError: the folder is gone, read-only or full, or holds no free file.
    """
    slot = slot_of(labels)
    try:
        for path in (folder.path / f"{slot}-{k}{SUFFIX}" for k in range(MOST_FILES)):
            found = _claim_path(path, folder.file_mode, labels, only_file_id)
            if found is not None:
                return found
    except NoLocksError:
        return _unlocked_file(folder, slot)
    raise OSError(errno.EEXIST, f"none of {MOST_FILES} files is free", f"{folder.path}/{slot}-*{SUFFIX}")


def lock(descriptor: int) -> bool:
    """Take the lock for life; False: somebody holds it.

    Raises:
        NoLocksError: the file system has no locks.
    """
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt < _LOCK_TRIES - 1:
                time.sleep(_LOCK_PAUSE_SECONDS)
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                raise NoLocksError(error.errno, error.strerror) from error
            raise
        else:
            return True
    return False


def _claim_path(path: Path, mode: int, labels: Labels, only_file_id: str | None) -> Claim | None:
    for _ in range(_INODE_TRIES):
        descriptor = _open_ours(path, mode)
        if descriptor is None:
            return None
        taken = None
        try:
            if not lock(descriptor):
                return None
            if not is_at(path, descriptor):
                continue
            taken = _take_over(descriptor, path, labels, only_file_id)
            return taken
        finally:
            if taken is None:
                descriptors.close(descriptor)
    return None


def _open_ours(path: Path, mode: int) -> int | None:
    try:
        descriptor = descriptors.open_file(path, OPEN_FLAGS, mode)
    except OSError as error:
        if error.errno in _NOT_OURS and path.parent.is_dir() and os.access(path.parent, os.W_OK):
            return None
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink <= 1:
        _set_mode(descriptor, found, mode)
        return descriptor
    descriptors.close(descriptor)
    return None


def _set_mode(descriptor: int, found: os.stat_result, mode: int) -> None:
    if stat.S_IMODE(found.st_mode) != mode:  # the umask took a bit away, or the group came later
        os.fchmod(descriptor, mode)


def _take_over(descriptor: int, path: Path, labels: Labels, only_file_id: str | None) -> Claim | None:
    fold, size = Fold(), 0
    try:
        for raw in _whole_lines(descriptor):
            fold.take(raw)
            size += len(raw)
    except LineError:
        return None
    if fold.file is not None and (
        fold.file.labels != labels or (only_file_id is not None and fold.file.file != only_file_id)
    ):
        return None
    if os.fstat(descriptor).st_size != size:
        os.ftruncate(descriptor, size)
    return Claim(descriptor, path, fold, size)


def _whole_lines(descriptor: int) -> Iterator[bytes]:
    offset, rest = 0, b""
    while chunk := os.pread(descriptor, _CHUNK_BYTES, offset):
        offset += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MOST_LINE_BYTES:
            msg = f"a line of more than {MOST_LINE_BYTES} bytes"
            raise LineError(msg)
        for line in whole:
            yield line + b"\n"


def _unlocked_file(folder: Folder, slot: str) -> Claim:
    path = folder.path / f"{slot}-{secrets.token_hex(8)}{SUFFIX}"
    descriptor = descriptors.open_file(path, OPEN_FLAGS | os.O_EXCL, folder.file_mode)
    os.fchmod(descriptor, folder.file_mode)
    return Claim(descriptor, path, Fold(), 0, locked=False)
