"""The journal's open descriptors, and what a fork does with them.

A lock belongs to the open file, which a forked child shares: while the child holds a copy of the
descriptor, its dead parent would still look alive. So a child closes what it inherited, also a
descriptor that was just being opened in another thread, and never unlocks (LOCK_UN would take
the lock from the parent). The guard below makes "open" and "remember" one step for a fork.

A program may close what is not its own (a daemon that closes all descriptors at its start); the
number is then given to another file, say a client's socket. So each number is kept with the file
that it was opened for, and whoever asks says which file is meant: the number may by now be that of
another journal file of this process. Nothing is written to another file, or closes it.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FORK_WAIT_SECONDS = 1.0  # an open may hang on a dead network disk; a fork must not

_guard = threading.Lock()
_open: dict[int, "Identity"] = {}
_forking = threading.local()  # .holds_guard: this thread's fork got the guard in time

Identity = tuple[int, int]  # device and inode: what tells one file from every other that exists


def open_file(path: Path, flags: int, mode: int) -> int:
    """Open a journal file; like os.open, and a forked child will close it."""
    with _guard:
        descriptor = os.open(path, flags, mode)
        try:
            _open[descriptor] = identity_of(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def is_still_open(descriptor: int, file: Identity) -> bool:
    """Whether the number is still that of this file, which `open_file` opened."""
    if _open.get(descriptor) != file:
        return False
    try:
        return identity_of(os.fstat(descriptor)) == file
    except OSError as error:
        return error.errno != errno.EBADF  # a disk that cannot be asked closes nothing


def identity_of(found: os.stat_result) -> Identity:
    """Return the device and the inode of what stat found."""
    return (found.st_dev, found.st_ino)


def close(descriptor: int, file: Identity | None = None) -> None:
    """Close a descriptor that `open_file` returned; its lock goes with it.

    Where it is closed already, as in a forked child, the number may be another file's: nothing happens.
    Without `file` the one is meant that had the number last: just after it was opened.
    """
    with _guard:
        opened_for = _open.get(descriptor)
        if opened_for is None or file not in {None, opened_for}:
            return
        is_open = is_still_open(descriptor, opened_for)
        del _open[descriptor]
        if is_open:
            with suppress(OSError):  # the file is done with; a failing close loses nothing that was written
                os.close(descriptor)


@contextmanager
def closed_on_error(descriptor: int) -> Iterator[None]:
    """Close the descriptor if the block raises, so that no failure leaves a lock behind."""
    try:
        yield
    except BaseException:
        close(descriptor)
        raise


def _before_fork() -> None:
    _forking.holds_guard = _guard.acquire(timeout=_FORK_WAIT_SECONDS)


def _after_fork_in_parent() -> None:
    if _forking.holds_guard:
        _guard.release()


def _after_fork_in_child() -> None:
    global _guard  # noqa: PLW0603  the inherited lock may be held by a thread that is not in this process
    _guard = threading.Lock()
    for descriptor in tuple(_open):
        close(descriptor)


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
