"""A scrape put together from pieces says what one that is written anew says, and writes only what changed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric

from nanwatch.journal.line import DRILL_RANK
from nanwatch.journal.reader import JournalReader
from nanwatch_sidecar import collector, metrics
from nanwatch_sidecar.collector import NanwatchCollector
from nanwatch_sidecar.encoding import encode
from nanwatch_sidecar.journal_view import JournalView
from nanwatch_sidecar.labels import SOURCE_LABELS
from tests.engine import Engine

from .conftest import parse


class Clock:
    """A reader's clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Story:
    """A few engines on one journal, and the collector that has seen all of it."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.clock = journal, Clock()
        self.view = JournalView(JournalReader(journal, self.clock))
        self.collector = NanwatchCollector(self.view, fail_fast=False, version="1")
        self.engines: list[Engine] = []
        self.requests = 0

    def start(self, rank: str = "0", *, counting: bool = True) -> None:
        """Begin a source, of the same labels as another where it has the same rank."""
        self.engines.append(Engine(self.journal, f"life-{len(self.engines)}", rank=rank, counting=counting))

    def do(self, what: str, which: int) -> None:
        """Let something happen."""
        if what in {"again", "annotating", "drill", "other"}:
            rank = {"again": "0", "annotating": "1", "drill": DRILL_RANK, "other": "2"}[what]
            self.start(rank, counting=what != "annotating")
        elif what in {"10 s", "601 s"}:
            self.clock.now += float(what.removesuffix(" s"))
        elif self.engines:
            engine = self.engines[which % len(self.engines)]
            self.requests += 1
            deed: dict[str, Callable[[], None]] = {
                "serve": engine.serve,
                "corrupt": lambda: engine.corrupt(f"req-{self.requests}", finished=True),
                "delay": lambda: engine.totals.add_delay(0.3),
                "drop": lambda: engine.totals.dropped_steps.update(slots=self.requests),
                "die": engine.die,
            }
            deed[what]()

    def is_told_alike(self) -> None:
        """Compare both formats with what is written of the whole."""
        self.view._poll()
        for openmetrics in (False, True):
            anew = encode(self.collector, openmetrics=openmetrics)
            assert self.collector.written(openmetrics=openmetrics) == anew

    def end(self) -> None:
        for engine in self.engines:
            engine.die()
        self.view._reader.close()


@pytest.fixture
def story(journal: Path) -> Iterator[Story]:
    made = Story(journal)
    yield made
    made.end()


RANK = SOURCE_LABELS.index("rank")
DEEDS = ("again", "annotating", "drill", "other", "10 s", "601 s", "serve", "corrupt", "delay", "drop", "die")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deeds=st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 5)), max_size=12))
def test_whatever_happens_the_pieces_say_what_the_whole_says(
    tmp_path_factory: pytest.TempPathFactory, deeds: list[tuple[str, int]]
) -> None:
    """After any deeds: engines begin, count and die, time passes, ranks disagree, drills are planted."""
    story = Story(tmp_path_factory.mktemp("story") / "journal")
    try:
        for deed in deeds:
            story.do(*deed)
            story.is_told_alike()
    finally:
        story.end()


def test_time_alone_makes_pieces_old(story: Story) -> None:
    """Without a line: a disagreement after 2 s, not active after 10, gone when dead for 600."""
    story.start()
    story.start("1", counting=False)
    story.engines[1].corrupt("only rank 1 saw it", finished=True)
    seen = []
    for now in (0, 3, 11, 611):
        story.clock.now = now
        story.is_told_alike()
        found = parse(story.collector.written(openmetrics=False).decode())
        active = sorted(value for _, value in found["nanwatch_hook_active"])
        seen.append((active, found.value("nanwatch_rank_disagreements_total")))
        if now == 11:
            story.engines[0].die()
    assert seen == [([1, 1], 0), ([1, 1], 1), ([0, 0], 1), ([0], 1)]


def test_only_what_changed_is_written_anew(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sources one goes on: its piece is made again, those of the others are not."""
    for rank in ("0", "1", "2"):
        story.start(rank)
    story.is_told_alike()
    made: list[str] = []

    def noted(by_source: dict[tuple[str, ...], object], *rest: object) -> list[Metric]:
        made.extend(labels[RANK] for labels in by_source)
        return metrics.of_sources(by_source, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(collector, "of_sources", noted)
    story.collector.written(openmetrics=False)
    assert made == []
    story.engines[1].serve()
    story.view._poll()
    story.collector.written(openmetrics=False)
    assert made == ["1"]
