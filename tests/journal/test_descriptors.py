"""What a fork does with the journal's open files: the child lets them go, and takes no lock away."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanwatch.journal import descriptors
from nanwatch.journal.reader import JournalReader
from tests.engine import Engine
from tests.journal.forked import in_child, kill, refusal
from tests.journal.told import is_free, open_in, path_of


class SlowOs:
    """Stands in for `os` where an open hangs: it is made, and returns when it is let go on."""

    def __init__(self) -> None:
        self.made, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, *arguments: Any) -> int:
        descriptor = os.open(*arguments)
        self.made.set()
        self.go_on.wait(10)
        return descriptor


@pytest.fixture
def hanging(journal: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowOs]:
    """An engine in another thread whose open hangs."""
    slow, before = SlowOs(), set(descriptors._open)
    monkeypatch.setattr(descriptors, "os", slow)
    thread = threading.Thread(target=lambda: Engine(journal))
    thread.start()
    assert slow.made.wait(10)
    yield slow
    slow.go_on.set()
    thread.join()
    for descriptor in set(descriptors._open) - before:
        descriptors.close(descriptor)


def test_a_child_has_none_of_its_parents_files(journal: Path) -> None:
    """Not one descriptor in the folder is open in it."""
    with Engine(journal):
        assert len(open_in(journal)) == 1
        assert in_child(lambda: open_in(journal)) == []
        assert len(open_in(journal)) == 1


def test_a_childs_closing_takes_no_lock_away(journal: Path) -> None:
    """It closes and never unlocks: its parent holds the file on, and writes to it."""
    with Engine(journal) as engine:
        assert in_child(lambda: is_free(path_of(engine))) is False
        assert not is_free(path_of(engine))
        engine.corrupt("after")
    assert is_free(path_of_only(journal))


def path_of_only(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def test_a_dead_parent_looks_dead_although_its_child_lives(journal: Path) -> None:
    """The lock is free at once, and the next life goes on with the file."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        _write_and_fork(journal, writing)
    os.close(writing)
    with os.fdopen(reading) as said:
        child = int(said.readline())
        kill(parent)
        os.kill(child, 0)  # it lives
        assert is_free(path_of_only(journal))
        os.kill(child, signal.SIGKILL)


def _write_and_fork(journal: Path, writing: int) -> None:
    """In a process of its own: write, fork a child that says its number, and wait to be killed."""
    try:
        engine = Engine(journal)
        engine.corrupt("before")
        if os.fork() == 0:
            os.write(writing, f"{os.getpid()}\n".encode())
        time.sleep(60)
    finally:
        os._exit(1)


def test_a_child_is_a_new_source_from_zero(journal: Path) -> None:
    """It writes a file of its own, in which nothing of its parent's is counted again."""
    with Engine(journal) as engine:
        engine.corrupt("parents-1", "parents-2")

        def count_one() -> str:
            with Engine(journal, life="child") as child:
                child.corrupt("childs")
                return path_of(child).name

        assert in_child(count_one) == path_of(engine).name.replace("-0.", "-1.")
        engine.corrupt("parents-3")
    reader = JournalReader(journal)
    reader.poll()
    assert [source.totals.corrupted_requests for source in reader.sources] == [3, 1]
    reader.close()


def test_an_inherited_writer_writes_nothing(journal: Path) -> None:
    """Two with one file id would be two contents of it."""
    with Engine(journal) as engine:
        before = path_of(engine).read_bytes()
        assert refusal(engine.write) == (
            "a forked child counts as a new source: it makes a writer of its own"
        )
        assert path_of(engine).read_bytes() == before
        assert [path.name for path in journal.iterdir()] == [path_of(engine).name]


def test_an_inherited_writer_closes_nobody_elses_file(journal: Path) -> None:
    """Its descriptor's number is another file's by then."""
    with Engine(journal) as engine:

        def still_open() -> bool:
            mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]  # one takes the number
            engine.die()
            for descriptor in mine:
                os.fstat(descriptor)
            return True

        assert in_child(still_open) is True


def test_a_file_that_is_just_being_opened_is_closed_in_the_child_too(journal: Path, hanging: SlowOs) -> None:
    """A fork waits until an open in another thread is remembered."""
    threading.Timer(0.1, hanging.go_on.set).start()
    assert in_child(lambda: open_in(journal)) == []
    assert hanging.go_on.is_set()


def test_a_fork_does_not_wait_for_an_open_that_hangs(
    hanging: SlowOs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead network disk must not hold up the engine's fork; the child can open files all the same."""
    monkeypatch.setattr(descriptors, "_FORK_WAIT_SECONDS", 0.05)
    assert in_child(_opens_and_closes) is True
    assert not hanging.go_on.is_set()
    hanging.go_on.set()
    assert in_child(_opens_and_closes) is True  # the guard is in order again


def _opens_and_closes() -> bool:
    setattr(descriptors, "os", os)  # noqa: B010  the child may have inherited a slow one
    descriptor = descriptors.open_file(Path(os.devnull), os.O_RDONLY, 0)
    descriptors.close(descriptor)
    return True


def test_a_failing_block_closes_and_a_good_one_does_not() -> None:
    """No failure leaves a lock behind."""
    with descriptors.closed_on_error(good := descriptors.open_file(Path(os.devnull), os.O_RDONLY, 0)):
        pass
    os.fstat(good)
    bad = descriptors.open_file(Path(os.devnull), os.O_RDONLY, 0)
    with pytest.raises(ZeroDivisionError), descriptors.closed_on_error(bad):
        raise ZeroDivisionError
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(bad)
    descriptors.close(good)


def test_an_open_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither a number to close nor a held guard."""
    before = dict(descriptors._open)
    with pytest.raises(FileNotFoundError):
        descriptors.open_file(tmp_path / "none", os.O_RDONLY, 0)
    assert descriptors._open == before
    assert in_child(_opens_and_closes) is True
