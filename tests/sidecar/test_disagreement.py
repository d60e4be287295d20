"""Requests that annotating ranks saw corrupted and the counting rank did not."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nanwatch.journal.kept import NEWEST
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.source import Source
from nanwatch_sidecar.disagreement import RIPE_SECONDS, RIPE_WHEN_FINISHED_SECONDS, Disagreements
from tests.engine import Engine

REPLICA = ("llama", "0", "torch", "0")


class Judge:
    """Polls a journal and judges it, some seconds from now."""

    def __init__(self, folder: Path) -> None:
        self._reader = JournalReader(folder)
        self._disagreements = Disagreements()

    def __call__(self, seconds_later: float = 0.0) -> int:
        self._reader.poll()
        self._disagreements.update(self._reader.sources, self._reader.clock() + seconds_later)
        return self.counts.get(REPLICA, 0)

    @property
    def counts(self) -> Mapping[tuple[str, ...], int]:
        return self._disagreements.counts

    @property
    def counting(self) -> list[Source]:
        return [source for source in self._reader.sources if source.counting]

    def remembered(self) -> int:
        """How many requests were judged and are still known."""
        return len(self._disagreements._judged[REPLICA])


@pytest.fixture
def judge(journal: Path) -> Judge:
    return Judge(journal)


@pytest.fixture
def rank_0(journal: Path) -> Iterator[Engine]:
    with Engine(journal, rank="0") as rank:
        yield rank


@pytest.fixture
def annotating(journal: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def rank(number: int, life: str = "life-1", **changed: Any) -> Engine:
        made.append(Engine(journal, life, counting=False, rank=str(number), **changed))
        return made[-1]

    yield rank
    for engine in made:
        engine.die()


Annotating = Callable[..., Engine]


def test_ranks_that_agree_are_no_disagreement(rank_0: Engine, annotating: Annotating, judge: Judge) -> None:
    """A request that the counting rank saw too is settled, whichever was written first."""
    rank_1 = annotating(1)
    rank_1.corrupt("late")
    assert judge() == 0
    rank_0.corrupt("late", "early")
    rank_1.corrupt("early")
    assert judge() == 0
    assert judge(1000) == 0


@pytest.mark.usefixtures("rank_0")
def test_a_request_that_only_another_rank_saw_counts_once_it_is_ripe(
    annotating: Annotating, judge: Judge
) -> None:
    """Ten seconds are given to the counting rank; then the request counts, once for all ranks that saw it."""
    for number in (1, 2, 3):
        annotating(number).corrupt("A")
    assert judge(RIPE_SECONDS - 1) == 0
    assert judge(RIPE_SECONDS + 1) == 1
    assert judge(1000) == 1


@pytest.mark.usefixtures("rank_0")
def test_a_request_that_ended_is_judged_sooner(annotating: Annotating, judge: Judge) -> None:
    """After its end nothing more will come, save what is just on its way."""
    annotating(1).corrupt("A", finished=True)
    assert judge() == 0
    assert judge(RIPE_WHEN_FINISHED_SECONDS + 1) == 1


def test_a_late_word_of_the_counting_rank_takes_nothing_back(
    rank_0: Engine, annotating: Annotating, judge: Judge
) -> None:
    """The counter only grows."""
    annotating(1).corrupt("A")
    assert judge(RIPE_SECONDS + 1) == 1
    rank_0.corrupt("A")
    assert judge(1000) == 1


def test_another_life_or_use_of_the_id_is_another_request(
    rank_0: Engine, annotating: Annotating, judge: Judge
) -> None:
    """That the counting rank saw this id in another life, or at another use, settles nothing."""
    rank_0.corrupt("A", n=1)
    annotating(1).corrupt("A")
    annotating(2, "life-2").corrupt("A")
    assert judge(RIPE_SECONDS + 1) == 2


def test_another_replica_settles_nothing(rank_0: Engine, annotating: Annotating, judge: Judge) -> None:
    """Replicas serve different requests, though their ids may be equal."""
    rank_0.corrupt("A")
    annotating(1, replica="1").corrupt("A")
    judge(1000)
    assert judge.counts == {("llama", "0", "torch", "1"): 1}


def test_what_the_counting_rank_has_forgotten_is_no_disagreement(
    rank_0: Engine, annotating: Annotating, judge: Judge
) -> None:
    """In a storm older requests are forgotten: that rank 0 does not list one of these proves nothing."""
    for start in range(0, 3 * NEWEST, NEWEST):
        storm = [f"req-{n}" for n in range(start, start + NEWEST)]
        rank_0.corrupt(*storm, first_seen_seconds=1_800_000_000.0 + start, finished=True)
    annotating(1).corrupt("req-500", first_seen_seconds=1_800_000_000.0)
    annotating(2).corrupt("seen by rank 2 alone", first_seen_seconds=1_900_000_000.0)
    assert judge(1000) == 1
    assert not any(("life-1", "req-500", 0) in source.corrupted for source in judge.counting)


@pytest.mark.usefixtures("rank_0")
def test_memory_of_what_was_judged_is_bounded(annotating: Annotating, judge: Judge) -> None:
    """What no source lists any more is forgotten, and the sum stays."""
    rank_1 = annotating(1)
    for start in range(0, 6 * NEWEST, NEWEST):
        rank_1.corrupt(*(f"req-{n}" for n in range(start, start + NEWEST)), finished=True)
        assert judge(1000) == start + NEWEST
    assert judge.remembered() <= 4 * NEWEST + 1000
