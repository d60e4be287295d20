"""A life may die before any system call and in the middle of any write: nothing is lost or counted twice.

Each script is one life (tests/journal/truth.py has the letters). A reader polls after every step and
after every death; what it says is held against what was observed and what a commit returned for.
"""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.journal.dying import (
    Action,
    DiedError,
    Process,
    come_short,
    die,
    die_in_write,
    fail,
    fail_after,
)
from tests.journal.truth import Life, Truth

# What one life does; renewal is due as often as its rules allow (RENEW_PAST_BYTES = 0).
SCRIPTS = {
    "start and append": "c11f1",
    "renewal": "1111111",
    "healing of a cut file": "1T1c",
    "healing of an emptied file": "1Z1c",
    "healing of a grown file": "1G1c",
    "healing of a deleted file": "1D1c",
    "healing of a replaced file": "1R1c",
    "healing of a deleted folder": "1F1c",
    "healing of a folder that was moved away": "1M1c",
    "healing of a folder that was moved away and back": "1M1B1c",
}
AS_A_LATER_LIFE = "1"  # what the life before it did
LAST = "c1"  # what the life after the deaths does

# What dies twice: a first life, and one that goes on with its file. The numbers say how many
# combinations there are at least: were it fewer, something would be left out.
FIRST = {"11f1": 610, "1111": 610, "1T1": 400, "1D1": 420, "1R1": 550, "1M1B1": 730}
SECOND = ("111", "1D1")
TWO_FAILURES = {"11": 540, "1111": 910, "1D1": 790}
FAILURE_THEN_DEATH = {"11": 250, "1111": 520, "1D1": 360}
FOLDER_IS_LOST = {"F", "M"}
WITH_EFFECT = {"open", "close", "write", "ftruncate", "rename", "unlink", "mkdir", "flock", "fchmod"}
FAULTS = {"open": errno.EMFILE, "flock": errno.ENOLCK, "unlink": errno.EPERM, "rename": errno.EXDEV}


class Moment(NamedTuple):
    """Something that happens at one system call of a life."""

    call: int
    name: str
    action: Action


@pytest.fixture(scope="module")
def process() -> Process:
    process = Process()
    process.module("writer").RENEW_PAST_BYTES = 0
    return process


@pytest.fixture
def lives(area: Path, process: Process) -> Iterator["Lives"]:
    lives = Lives(area, process)
    yield lives
    process.end()


class Lives:
    """Runs lives one after the other, each on the folder that the one before left."""

    def __init__(self, area: Path, process: Process) -> None:
        self._area, self._process = area, process
        self.combinations = 0

    def begin(self) -> Truth:
        """Return a folder where nothing happened yet."""
        for old in self._area.iterdir():
            shutil.rmtree(old)
        return Truth(self._area / "journal")

    def live(self, truth: Truth, script: str, *moments: Moment) -> list[str]:
        """Run one life to its end or its death; returns the system calls it made."""
        self._process.live({moment.call: moment.action for moment in moments})
        life = Life(truth, self._process)
        try:
            life.run(script)
        except DiedError:
            assert moments
        finally:
            self._process.end()
        truth.check()
        return self._process.calls

    def calls_of(self, *lives: tuple[str, *tuple[Moment, ...]]) -> list[str]:
        """Return the system calls that the last of these lives makes."""
        truth = self.begin()
        calls: list[str] = []
        for script, *moments in lives:
            calls = self.live(truth, script, *moments)
        truth.close()
        return calls

    def run(self, *lives: tuple[str, *tuple[Moment, ...]]) -> None:
        """Run these lives on a new folder, and then one that nothing happens to."""
        truth = self.begin()
        for script, *moments in lives:
            self.live(truth, script, *moments)
        self.live(truth, LAST)
        truth.close()
        self.combinations += 1

    def survive(self, *lives: tuple[str, *tuple[Moment, ...]]) -> None:
        """Run these lives; the last one fails somewhere, commits at last, and leaves nothing behind."""
        truth = self.begin()
        for script, *moments in lives[:-1]:
            self.live(truth, script, *moments)
        script, *moments = lives[-1]
        self._process.live({moment.call: moment.action for moment in moments})
        life = Life(truth, self._process)
        life.run(script)
        self._process.actions = {}
        assert life.run("c") == 0
        assert self._process.open_descriptors == 1
        if "unlink" not in {moment.name for moment in moments}:
            assert not list(truth.folder.glob("*.tmp"))
        self._process.end()
        self.live(truth, LAST)
        truth.check_exact()
        if not FOLDER_IS_LOST & set(script):
            truth.check_late()
        truth.close()
        self.combinations += 1


def deaths(calls: list[str], *, with_effect_only: bool = False) -> Iterator[Moment]:
    """Every moment to die: before each call, and in each write at half and just short of the newline.

    Dying before a call that only looks is dying before the next one that does something.
    """
    for number, name in enumerate(calls, 1):
        if name in WITH_EFFECT or not with_effect_only:
            yield Moment(number, name, die)
        if name == "write":
            yield Moment(number, name, die_in_write(0.5))
            yield Moment(number, name, die_in_write(1.0))


def faults(calls: list[str]) -> Iterator[Moment]:
    """Every failure that a life survives."""
    for number, name in enumerate(calls, 1):
        if name == "close":  # on Linux the descriptor is closed, whatever close says
            yield Moment(number, name, fail_after(errno.EIO))
            continue
        yield Moment(number, name, fail(errno.EIO))
        yield Moment(number, name, fail(errno.ENOSPC))
        if name in FAULTS:
            yield Moment(number, name, fail(FAULTS[name]))
        if name == "write":
            yield Moment(number, name, come_short)
        if name == "rename":
            yield Moment(number, name, fail_after(errno.EIO))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_one_death_anywhere_in_a_first_life(script: str, lives: Lives) -> None:
    """A life that dies at any call leaves a folder on which the next one counts on."""
    for moment in deaths(lives.calls_of((script,))):
        lives.run((script, moment))
    assert lives.combinations >= 39


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_one_death_anywhere_in_a_later_life(script: str, lives: Lives) -> None:
    """... also where the life that dies goes on with the file of one before."""
    before = (AS_A_LATER_LIFE,)
    for moment in deaths(lives.calls_of(before, (script,))):
        lives.run(before, (script, moment))
    assert lives.combinations >= 39


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize(("first", "least"), FIRST.items())
def test_two_deaths_anywhere(first: str, least: int, second: str, lives: Lives) -> None:
    """Each pair of deaths, in one life and in the next: the third counts on."""
    for moment in deaths(lives.calls_of((first,)), with_effect_only=True):
        calls = lives.calls_of((first, moment), (second,))
        for next_moment in deaths(calls, with_effect_only=True):
            lives.run((first, moment), (second, next_moment))
    assert lives.combinations >= least


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_reader_that_polls_at_every_call_never_sees_a_sum_fall(
    script: str, lives: Lives, process: Process
) -> None:
    """Half-written lines, cuts and renames are looked at from outside while they happen."""
    truth = lives.begin()
    process.before_call = lambda _: truth.check()
    for once in (AS_A_LATER_LIFE, script, LAST):
        lives.live(truth, once)
    process.before_call = lambda _: None
    truth.check_exact()
    truth.check_late()
    truth.close()


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_one_failure_anywhere(script: str, lives: Lives, process: Process) -> None:
    """A call that fails ends no life and loses nothing: the next commit holds all that was observed."""
    before = (AS_A_LATER_LIFE,)
    for moment in faults(lives.calls_of(before, (script,))):
        lives.survive(before, (script, moment))
    assert lives.combinations >= 86


@pytest.mark.parametrize(("script", "least"), TWO_FAILURES.items())
def test_two_failures_in_one_life(script: str, least: int, lives: Lives) -> None:
    """... and two do not either: the cut after a short write fails, the unlink after a failed rename."""
    for moment in faults(lives.calls_of((script,))):
        for later in faults(lives.calls_of((script, moment))):
            if later.call > moment.call and {moment.name, later.name} <= WITH_EFFECT:
                lives.survive((script, moment, later))
    assert lives.combinations >= least


@pytest.mark.parametrize(("script", "least"), FAILURE_THEN_DEATH.items())
def test_a_failure_and_then_death(script: str, least: int, lives: Lives) -> None:
    """A life that dies while it copes with a failure leaves a folder on which the next one counts on."""
    for moment in faults(lives.calls_of((script,))):
        for death in deaths(lives.calls_of((script, moment)), with_effect_only=True):
            if death.call > moment.call and moment.name in WITH_EFFECT:
                lives.run((script, moment, death))
    assert lives.combinations >= least
