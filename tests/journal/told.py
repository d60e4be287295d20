"""What one file says, and whether anybody holds it."""

import fcntl
from pathlib import Path
from typing import Any

from nanwatch.journal.decoding import decode
from nanwatch.journal.fold import Fold
from tests.engine import Engine


def path_of(engine: Engine) -> Path:
    """Return the file that an engine holds."""
    assert engine.writer.path is not None
    return engine.writer.path


def lines(path: Path) -> list[Any]:
    """Return every line of a file, all of them whole."""
    return [decode(raw) for raw in path.read_bytes().splitlines(keepends=True)]


def folded(path: Path) -> Fold:
    """Return what the whole lines of a file add up to."""
    fold = Fold()
    for raw in path.read_bytes().splitlines(keepends=True):
        if raw.endswith(b"\n"):
            fold.take(raw)
    return fold


def told(path: Path) -> list[str]:
    """Return the ids of the corrupted requests that a file tells of."""
    return [request.request_id for request in folded(path).corrupted.values()]


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock, as a starter would find out."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def open_in(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    targets = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target.name for target in targets if target.is_relative_to(folder)]
