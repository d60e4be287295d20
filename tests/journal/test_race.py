"""Starters that race, in the orders of their system calls that two switches allow, and in random ones.

Never do two write one file, and never does one file id stand for two contents.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanwatch.journal.fold import Fold
from tests.journal.dying import Process
from tests.journal.truth import Life, Truth
from tests.journal.turns import Actor, play

CALLS = 16  # of each, before which they switch: a start in peace makes as many
RANDOM_ORDERS = 100


def nothing_there(_: Truth, __: Process) -> None:
    return


def a_dead_file(truth: Truth, process: Process) -> None:
    """A file to go on with, whose last line is half written."""
    process.live()
    life = Life(truth, process)
    life.run("c11")
    assert life.writer.path is not None
    with life.writer.path.open("ab") as file:
        file.write(b'{"kind":"rep')
    process.end()


BEFORE: dict[str, Callable[[Truth, Process], None]] = {
    "nothing there": nothing_there,
    "a dead file": a_dead_file,
}


class Race:
    """Two lives that start on the same folder, and a look at them after each call."""

    def __init__(self, folder: Path, processes: tuple[Process, ...]) -> None:
        self.truth = Truth(folder)
        self.processes = processes
        self.lives: list[Life] = []
        self._looks = 0

    def enter(self, number: int) -> Life:
        """Let one more life begin; nothing of it has run yet."""
        self.processes[number].live()
        self.lives.append(Life(self.truth, self.processes[number]))
        return self.lives[-1]

    def look(self) -> None:
        """No two hold the file at one path, and the reader is right."""
        files = [life.writer._file for life in self.lives if life.writer._file is not None]
        held = [file.path for file in files if _is_at(file.path, file.identity)]
        assert len(held) == len(set(held))
        self._looks += 1
        if self._looks % 4 == 0:
            self.truth.check()

    def finish(self, *foreign: Path) -> None:
        """Both write once more; then every id is in one file, and nothing is missing."""
        for life in self.lives:
            assert life.run("1") == 0
        self.look()
        self.truth.check_exact()
        ids = [_file_id(path) for path in self.truth.folder.glob("*.jsonl") if path not in foreign]
        assert len(ids) == len(set(ids))
        for process in self.processes:
            process.end()
        self.truth.close()


@pytest.fixture(scope="module")
def processes() -> tuple[Process, ...]:
    found = tuple(Process() for _ in range(3))
    for process in found:
        process.module("writer").RENEW_PAST_BYTES = 0
    return found


@pytest.fixture
def begin(area: Path, processes: tuple[Process, ...]) -> Iterator[Callable[[], Race]]:
    def new_race() -> Race:
        shutil.rmtree(area / "journal", ignore_errors=True)
        return Race(area / "journal", processes)

    yield new_race
    for process in processes:
        process.end()


def with_two_switches(step: int = 1) -> Iterator[Iterable[int]]:
    """One does some calls, the other does some, the first goes on to its end, then the other."""
    for first in (0, 1):
        for before in range(CALLS):
            for between in range(1, CALLS, step):
                yield [first] * before + [1 - first] * between + [first] * 100


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_two_starters(before: Callable[[Truth, Process], None], begin: Callable[[], Race]) -> None:
    """Two processes with the same labels start at once: each gets a file of its own."""
    orders = 0
    for order in with_two_switches():
        race = begin()
        before(race.truth, race.processes[0])
        actors = [Actor(race.processes[n], _playing(race.enter(n), "c")) for n in (0, 1)]
        play(actors, order, race.look)
        race.finish()
        orders += 1
    assert orders == 2 * CALLS * (CALLS - 1)


@pytest.mark.parametrize("script", ["11", "Z1", "D1", "R1"])
def test_a_starter_while_another_renews_or_heals(script: str, begin: Callable[[], Race]) -> None:
    """Whoever starts while the file is made anew leaves it alone, or its writer moves on."""
    orders = 0
    for order in with_two_switches(step=2):
        race = begin()
        holder = race.enter(0)
        holder.run("c11")
        first = [holder.writer.path]
        actors = [
            Actor(race.processes[0], _playing(holder, script)),
            Actor(race.processes[1], _playing(race.enter(1), "c")),
        ]
        play(actors, order, race.look)
        race.finish(*(path for path in first if script == "R1"))
        orders += 1
    assert orders == CALLS * CALLS


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_two_starters_and_a_reader_that_probes(
    before: Callable[[Truth, Process], None], begin: Callable[[], Race]
) -> None:
    """A reader's probe may cost a starter its try, and then it takes the next file: nothing is lost."""
    chance = random.Random(4711)
    for _ in range(RANDOM_ORDERS):
        race = begin()
        before(race.truth, race.processes[0])
        reader = race.processes[2].module("reader").JournalReader(race.truth.folder)
        race.processes[2].live()
        actors = [Actor(race.processes[n], _playing(race.enter(n), "c")) for n in (0, 1)]
        actors.append(Actor(race.processes[2], _polling(reader)))
        play(actors, chance.choices((0, 1, 2), (1, 1, 2), k=120), race.look)
        race.finish()


def _playing(life: Life, script: str) -> Callable[[], object]:
    return lambda: life.run(script)


def _polling(reader: Any) -> Callable[[], object]:
    return lambda: [reader.poll() for _ in range(3)]


def _is_at(path: Path, identity: tuple[int, int]) -> bool:
    if not path.exists():
        return False
    found = os.lstat(path)
    return (found.st_dev, found.st_ino) == identity


def _file_id(path: Path) -> str | None:
    fold = Fold()
    for line in path.read_bytes().splitlines(keepends=True):
        fold.take(line)
    return fold.file.file if fold.file else None
