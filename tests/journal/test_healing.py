"""What the writer does when somebody else did something to its file, or to its folder."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nanwatch.journal import descriptors
from nanwatch.journal.reader import JournalReader
from tests.engine import Engine
from tests.journal.dying import Process
from tests.journal.told import folded, is_free, path_of, told
from tests.journal.truth import Life, Truth

HEALED = ["a", "b", "c"]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"not a line of ours")


def delete(path: Path) -> None:
    path.unlink()


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_by_itself(path: Path) -> None:
    """As `sed -i` and most editors do."""
    copy = path.with_suffix(".new")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


def move_folder_away(path: Path) -> None:
    path.parent.rename(path.parent.with_suffix(".away"))


def descriptor_of(path: Path) -> int:
    """Return the number under which the writer of this process has a file open."""
    (number,) = [n for n in descriptors._open if Path(f"/proc/self/fd/{n}").readlink() == path]
    return number


def close_its_descriptor(path: Path) -> None:
    """As a daemon that closes all it finds open."""
    os.close(descriptor_of(path))


DAMAGE = [
    cut,
    empty,
    grow,
    delete,
    delete_folder,
    replace_by_itself,
    move_folder_away,
    close_its_descriptor,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_the_next_tick_heals(journal: Path, damage: Callable[[Path], None]) -> None:
    """At the same path, under the same id, with everything that this life and earlier ones told of."""
    with Engine(journal, life="life-0") as engine:
        engine.corrupt("a")
    reader = JournalReader(journal)
    with Engine(journal) as engine:
        engine.corrupt("b")
        reader.poll()
        path, before = path_of(engine), folded(path_of(engine))
        damage(path)
        reader.poll()
        engine.corrupt("c")
        after = folded(path)
        assert path_of(engine) == path
        assert (after.file, after.start) == (before.file, before.start)
        assert after.totals.corrupted_requests == 3
        assert told(path) == HEALED
        assert not is_free(path)
        reader.poll()
        (source,) = reader.sources
        assert source.totals.corrupted_requests == 3
        assert source.active
    reader.close()


def test_a_file_that_got_our_descriptors_number_is_left_alone(journal: Path, tmp_path: Path) -> None:
    """The engine closed it and opened a file of its own: no line goes into that, and it stays open."""
    with Engine(journal) as engine:
        engine.corrupt("a")
        number = descriptor_of(path_of(engine))
        with (tmp_path / "theirs").open("wb") as theirs:
            os.dup2(theirs.fileno(), number)
            engine.corrupt("b")
            assert told(path_of(engine)) == ["a", "b"]
            os.write(number, b"still theirs")
    assert (tmp_path / "theirs").read_bytes() == b"still theirs"
    os.close(number)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_two_files_that_lost_their_descriptors_each_keeps_to_its_own(journal: Path, order: str) -> None:
    """Whichever heals first may be given the number that the other one remembers."""
    reader = JournalReader(journal)
    with Engine(journal, rank="a") as a, Engine(journal, rank="b") as b:
        first, second = (a, b) if order == "ab" else (b, a)
        for number in [descriptor_of(path_of(engine)) for engine in (a, b)]:
            os.close(number)
        first.corrupt("first")
        second.corrupt("second", "third")
        for engine in (first, second, first):
            reader.poll()
            engine.serve()
            assert told(path_of(first)) == ["first"]
            assert told(path_of(second)) == ["second", "third"]
            assert not is_free(path_of(first))
            assert not is_free(path_of(second))
        assert sorted(source.totals.corrupted_requests for source in reader.sources) == [1, 2]
    reader.close()


def test_a_foreign_file_in_its_place_is_left_alone(journal: Path) -> None:
    """The writer moves on to the next k, with its id."""
    with Engine(journal) as engine:
        engine.corrupt("a")
        path, before = path_of(engine), folded(path_of(engine)).file
        path.unlink()
        path.write_bytes(b"somebody's\n")
        engine.corrupt("b")
        assert path_of(engine).name == path.name.replace("-0.", "-1.")
        assert folded(path_of(engine)).file == before
        assert told(path_of(engine)) == ["a", "b"]
        assert path.read_bytes() == b"somebody's\n"


def test_another_sources_file_in_its_place_is_left_alone(journal: Path) -> None:
    """One that started in the moment in which there was no file: each has one id and one file."""
    with Engine(journal) as engine:
        engine.corrupt("a")
        path_of(engine).unlink()
        with Engine(journal, life="life-2") as other:
            other.corrupt("x")
            engine.corrupt("b")
            assert told(path_of(other)) == ["x"]
            assert told(path_of(engine)) == ["a", "b"]
            assert path_of(other).name.endswith("-0.jsonl")
            assert path_of(engine).name.endswith("-1.jsonl")


def test_never_renamed_over_a_file_that_came_in_between(journal: Path, process: Process) -> None:
    """Between the look and the rename somebody puts another file there."""
    truth = Truth(journal)
    life = Life(truth, process)
    life.run("c1")
    path = life.writer.path
    assert path is not None
    os.truncate(path, 10)

    def replace(call: str) -> None:
        if call == "write":
            path.unlink()
            path.write_bytes(b"somebody's\n")
            process.before_call = lambda _: None

    process.before_call = replace
    with pytest.raises(OSError, match="another file came to this place"):
        life.writer.commit(life._totals)
    assert path.read_bytes() == b"somebody's\n"
    assert life.run("1") == 0
    assert life.writer.path != path
    assert path.read_bytes() == b"somebody's\n"
    truth.check_exact()


def test_a_folder_moved_away_and_back(journal: Path) -> None:
    """The old file holds our own id: it is made anew in its place, and no other is left."""
    away = journal.with_suffix(".away")
    with Engine(journal) as engine:
        engine.corrupt("a")
        journal.rename(away)
        engine.corrupt("b")
        shutil.rmtree(journal)
        away.rename(journal)
        engine.corrupt("c")
        assert [path.name for path in journal.iterdir()] == [path_of(engine).name]
        assert path_of(engine).name.endswith("-0.jsonl")
        assert told(path_of(engine)) == HEALED


def test_a_folder_that_cannot_be_had_is_waited_for(journal: Path) -> None:
    """Each commit fails in words, nothing is lost, and it goes on when the folder is there again."""
    engine = Engine(journal)
    engine.corrupt("a")
    shutil.rmtree(journal)
    journal.touch()
    for name in ("b", "c"):
        with pytest.raises(OSError, match=f"journal folder {journal} is not a folder"):
            engine.corrupt(name)
    assert (engine.writer.unsaved, engine.writer.path) == (2, None)
    journal.unlink()
    engine.write()
    assert told(path_of(engine)) == HEALED
    assert engine.writer.unsaved == 0
    engine.die()
