"""Getting hold of a file to write: a new one, or a dead one to go on with.

The rules, in this order; each was found by killing a prototype at every system call:
    1. for k = 0, 1, ... open `<slot>-<k>.jsonl`; it must be a regular file of ours with one link
    2. lock it; three tries 5 ms apart, because a reader may be probing the lock (one try past the
       first few files, so that the hundredth probe of a process does not wait for ninety-nine)
    3. look at the path again: another inode means that a renewal came between, so the same k again
    4. held by somebody, foreign, unreadable or of a newer major version: the next k
    5. no whole first line: it is ours to begin; else fold it and cut a half-written last line
No file of another is ever unlinked or taken over: a file has one locked writer for life. Where the
file system has no locks a file of a random name is made, which is never continued.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from . import descriptors
from .descriptors import identity_of
from .fold import Fold, ForeignFileError
from .folder import SUFFIX, Folder, is_at
from .held import LOCK_TRIES, OPEN_FLAGS, HeldFile, NoLocksError, lock, make
from .line import FILE_LINE_BEGINS, MOST_LINE_BYTES, Labels, LineError

MOST_FILES = 4096  # per slot; past that something makes files faster than anything can read them
PATIENT_FILES = 8  # past so many held files of one source it is its own many probes, and no reader's look
_INODE_TRIES = 100
_NOT_OURS = frozenset({errno.ELOOP, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENXIO})
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Claim:
    """A held file, and what its whole lines said."""

    file: HeldFile
    fold: Fold


def slot_of(labels: Labels) -> str:
    """Return the part of a file name that is one for all lives of the same source."""
    text = "\0".join(getattr(labels, name) for name in Labels.__slots__)
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def claim(
    folder: Folder, labels: Labels, *, only_file_id: str | None = None, was_locked: bool = False
) -> Claim:
    """Return the first file of this source's slot that is free, locked for life.

    With `only_file_id` (healing) a file is taken only if it is new or holds that id. Then what
    cannot be read, or locked where there were locks, is not passed over: it may hold that id, and
    a later life would find two of it.

    Raises:
        OSError: the folder is gone, read-only or full, or holds no free file.
    """
    slot = slot_of(labels)
    try:
        for k in range(MOST_FILES):
            path = folder.path / f"{slot}-{k}{SUFFIX}"
            tries = LOCK_TRIES if k < PATIENT_FILES else 1
            found = _claim_path(path, folder, labels, only_file_id, tries)
            if found is not None:
                return found
    except NoLocksError:
        if was_locked:
            raise
        return _unlocked_file(folder, slot)
    raise OSError(errno.EEXIST, f"none of {MOST_FILES} files is free", f"{folder.path}/{slot}-*{SUFFIX}")


def _claim_path(
    path: Path, folder: Folder, labels: Labels, only_file_id: str | None, lock_tries: int
) -> Claim | None:
    for _ in range(_INODE_TRIES):
        descriptor = _open(path, folder, may_pass_over=only_file_id is None)
        if descriptor is None:
            return None
        with descriptors.closed_on_error(descriptor):
            raced = False
            if _is_ours(descriptor) and lock(descriptor, lock_tries):
                raced = not is_at(path, descriptor)
                found = None if raced else _take(descriptor, path, labels, only_file_id)
                if found is not None:
                    folder.give_rights(descriptor)
                    return found
        descriptors.close(descriptor)
        if not raced:
            return None
    return None


def _open(path: Path, folder: Folder, *, may_pass_over: bool) -> int | None:
    try:
        return _make(path, folder)
    except FileExistsError:
        pass
    try:
        return descriptors.open_file(path, OPEN_FLAGS, folder.file_mode)
    except OSError as error:
        if error.errno in _NOT_OURS or (may_pass_over and error.errno == errno.EIO):
            return None
        raise


def _make(path: Path, folder: Folder) -> int:
    descriptor = make(path, folder)
    with descriptors.closed_on_error(descriptor):
        if not _is_ours(descriptor):  # no life could go on with such a file: each would make another
            os.unlink(path)
            raise OSError(errno.EPERM, "this mount gives new files to another user", str(path))
    return descriptor


def _is_ours(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink <= 1


def _take(descriptor: int, path: Path, labels: Labels, only_file_id: str | None) -> Claim | None:
    try:
        found = os.fstat(descriptor)
        fold, size = _fold(descriptor)
        if not _may_go_on(fold, labels, only_file_id):
            return None
        if found.st_size != size:
            os.ftruncate(descriptor, size)
    except LineError:
        return None
    except OSError:  # unreadable, or its last line cannot be cut
        if only_file_id is None:
            return None
        raise
    return Claim(HeldFile(descriptor, path, identity_of(found), size), fold)


def _may_go_on(fold: Fold, labels: Labels, only_file_id: str | None) -> bool:
    if fold.file is None:
        return True
    return fold.file.labels == labels and only_file_id in {None, fold.file.file}


def _fold(descriptor: int) -> tuple[Fold, int]:
    """Fold the whole lines; returns their size too."""
    fold, size = Fold(), 0
    for line in _lines(descriptor):
        if line.endswith(b"\n"):
            fold.take(line)
            size += len(line)
        elif fold.file is None and not FILE_LINE_BEGINS.startswith(line[: len(FILE_LINE_BEGINS)]):
            raise ForeignFileError("it begins like no journal file")
    return fold, size


def _lines(descriptor: int) -> Iterator[bytes]:
    """Yield each line with its newline, and at last what comes after the last newline."""
    offset, rest = 0, b""
    while chunk := os.pread(descriptor, _CHUNK_BYTES, offset):
        offset += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > MOST_LINE_BYTES:
            raise LineError(f"a line of more than {MOST_LINE_BYTES} bytes")
    yield rest


def _unlocked_file(folder: Folder, slot: str) -> Claim:
    path = folder.path / f"{slot}-{secrets.token_hex(8)}{SUFFIX}"
    descriptor = make(path, folder)
    identity = identity_of(os.fstat(descriptor))
    return Claim(HeldFile(descriptor, path, identity, 0, locked=False), Fold())
