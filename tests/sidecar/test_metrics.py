"""What /metrics says of a journal that real writers wrote."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from nanwatch.journal.reader import JournalReader
from nanwatch.journal.totals import DROP_REASONS, Totals
from nanwatch.settings import OnNan, Settings
from nanwatch_sidecar import metrics
from nanwatch_sidecar.app import create_app
from nanwatch_sidecar.journal_view import JournalView
from tests.engine import Engine

from .conftest import Metrics, parse

Scrape = Callable[[], Metrics]

REPLICA = {"model_name": "llama", "engine": "0", "runtime": "torch", "replica": "0"}
SOURCE = {**REPLICA, "host": "node-1", "rank": "0", "UUID": "GPU-1"}


@pytest.mark.usefixtures("engine")
def test_every_series_of_a_known_source_stands_at_zero_before_its_first_event(scrape: Scrape) -> None:
    """A counter that first appears above 0 is invisible to increase(): all of them begin at 0."""
    found = scrape()
    where = [name for name, _ in metrics.WHERE.values()]
    for name in (*where, "nanwatch_last_step_timestamp_seconds"):
        assert found[name] == [(SOURCE, 0.0)]
    assert found["nanwatch_quarantined_blocks"] == [(SOURCE, 0.0)]
    for name in ("corrupted_requests_total", "nanwatch_requests_total", "nanwatch_fail_fast_trips_total"):
        assert found[name] == [(REPLICA, 0.0)]
    assert found["nanwatch_aborted_requests_total"] == [(REPLICA, 0.0)]
    assert found["nanwatch_rank_disagreements_total"] == [(REPLICA, 0.0)]
    assert found["nanwatch_dropped_steps_total"] == [({**SOURCE, "reason": r}, 0.0) for r in DROP_REASONS]
    assert found.value("nanwatch_detection_delay_seconds_count") == 0
    assert {value for _, value in found["nanwatch_detection_delay_seconds_bucket"]} == {0.0}


def test_a_scrape_of_an_empty_journal_holds_what_needs_no_source(scrape: Scrape) -> None:
    """Before any engine has started a scrape succeeds and says what it knows."""
    found = scrape()
    assert found["nanwatch_fail_fast_enabled"] == [({}, 0.0)]
    assert found["nanwatch_journal_problems"] == [({}, 1.0)]
    assert [list(labels) for labels, _ in found["nanwatch_build_info"]] == [["version"]]
    assert "corrupted_requests_total" not in found


def test_every_cell_of_the_totals_is_shown(engine: Engine, scrape: Scrape) -> None:
    """Whatever a source counts can be seen: no cell of the journal's totals is left out of the metrics.

    Of blocks that were held back, and given back, what can be seen is the difference.
    """
    pair = ("quarantined_blocks", "released_blocks")
    cells = [f.name for f in fields(Totals) if f.type in (int, "int") and f.name not in pair]
    for number, cell in enumerate(cells, start=101):
        setattr(engine.totals, cell, number)
    engine.totals.corrupted_requests = 7
    engine.write()
    shown = {value for samples in scrape().values() for _, value in samples}
    assert {getattr(engine.totals, cell) for cell in cells} <= shown


def test_each_counter_says_its_own_cell(engine: Engine, scrape: Scrape) -> None:
    """No two counters are mixed up."""
    for number, cell in enumerate(metrics.WHERE, start=1):
        setattr(engine.totals, cell, number)
    engine.totals.requests, engine.totals.corrupted_requests, engine.totals.fail_fast_trips = 60, 50, 40
    engine.totals.aborted_requests = 35
    engine.totals.dropped_steps = {"slots": 30, "lost": 20, "sunspots": 10}
    engine.write()
    found = scrape()
    for number, (name, _) in enumerate(metrics.WHERE.values(), start=1):
        assert found.value(name) == number
    assert found.value("nanwatch_requests_total") == 60
    assert found.value("corrupted_requests_total") == 50
    assert found.value("nanwatch_fail_fast_trips_total") == 40
    assert found.value("nanwatch_aborted_requests_total") == 35
    dropped = {labels["reason"]: n for labels, n in found["nanwatch_dropped_steps_total"] if n}
    assert dropped == {"slots": 30, "lost": 20, "sunspots": 10}


def test_blocks_held_back_are_those_of_the_life_that_runs(journal: Path, scrape: Scrape) -> None:
    """Held 8 and gave 5 back, died: 0, its blocks went with it. The next holds 2 and gives 1 back: 1."""
    held_back: list[float] = []
    for life, quarantined, released in (("life-1", 8, 5), ("life-2", 2, 1)):
        with Engine(journal, life) as engine:
            engine.totals.quarantined_blocks, engine.totals.released_blocks = quarantined, released
            engine.write()
            held_back.append(scrape().value("nanwatch_quarantined_blocks"))
        held_back.append(scrape().value("nanwatch_quarantined_blocks"))
    assert held_back == [3, 0, 1, 0]


def test_eight_ranks_of_one_life_count_a_request_once(journal: Path, scrape: Scrape) -> None:
    """Eight ranks that all report A at step 17 are one corrupted request, and eight rows on eight GPUs."""
    ranks = [Engine(journal, counting=rank == 0, rank=str(rank), uuid=f"GPU-{rank}") for rank in range(8)]
    for rank in ranks:
        rank.corrupt("A", first_step=17)
    found = scrape()
    assert found["corrupted_requests_total"] == [(REPLICA, 1.0)]
    assert found["nanwatch_requests_total"] == [(REPLICA, 1.0)]
    assert sum(value for _, value in found["nanwatch_nan_rows_total"]) == 8
    where = [(labels["rank"], labels["UUID"]) for labels, _ in found["nanwatch_nan_rows_total"]]
    assert where == [(str(rank), f"GPU-{rank}") for rank in range(8)]
    assert found["nanwatch_rank_disagreements_total"] == [(REPLICA, 0.0)]
    for rank in ranks:
        rank.die()


def test_two_replicas_with_different_requests_are_two_series(journal: Path, scrape: Scrape) -> None:
    """Data-parallel replicas serve different requests: each counts its own, C grows by 2."""
    with Engine(journal, replica="0") as one, Engine(journal, replica="1") as other:
        one.corrupt("A")
        other.corrupt("B")
        found = scrape()
    assert found.value("corrupted_requests_total", replica="0") == 1
    assert found.value("corrupted_requests_total", replica="1") == 1


def test_files_of_one_slot_are_one_series(journal: Path, scrape: Scrape) -> None:
    """Two living sources with equal labels have two files, and a scrape holds each series once."""
    with Engine(journal, "life-1") as one, Engine(journal, "life-2") as other:
        assert one.writer.path != other.writer.path
        one.corrupt("A", "B")
        other.corrupt("A")
        other.serve(4)
        answer = scrape()
    for name, samples in answer.items():
        assert len(samples) == len({json.dumps(labels, sort_keys=True) for labels, _ in samples}), name
    assert answer["corrupted_requests_total"] == [(REPLICA, 3.0)]
    assert answer["nanwatch_requests_total"] == [(REPLICA, 7.0)]
    assert answer["nanwatch_rows_total"] == [(SOURCE, 4.0)]
    assert answer["nanwatch_hook_active"] == [(SOURCE, 1.0)]


def test_a_crash_and_a_new_life_are_summed(journal: Path, scrape: Scrape) -> None:
    """Two corrupted, a crash, then one whose id was used before: C is 3."""
    with Engine(journal, "life-1") as engine:
        engine.corrupt("cmpl-0", "cmpl-1")
    assert scrape().value("corrupted_requests_total") == 2
    with Engine(journal, "life-2") as engine:
        engine.corrupt("cmpl-0")
        assert scrape().value("corrupted_requests_total") == 3


def test_a_restarted_sidecar_knows_everything_at_once(journal: Path, engine: Engine, scrape: Scrape) -> None:
    """C is 7 before and after a restart of the sidecar, and 8 after one more."""
    engine.corrupt(*(f"req-{n}" for n in range(7)))
    assert scrape().value("corrupted_requests_total") == 7
    view = JournalView(JournalReader(journal))
    client = TestClient(create_app(Settings(journal=journal), view))
    assert parse(client.get("/metrics").text).value("corrupted_requests_total") == 7
    engine.corrupt("req-7")
    assert parse(client.get("/metrics").text).value("corrupted_requests_total") == 8
    view.close()


def test_a_hundred_thousand_ids_make_no_series(engine: Engine, scrape: Scrape, client: TestClient) -> None:
    """Request ids are never labels: series stand still, the list is bounded, the counter is not."""
    engine.corrupt("first")
    before = sum(map(len, scrape().values()))
    for start in range(0, 100_000, 10_000):
        engine.corrupt(*(f"req-{n}" for n in range(start, start + 10_000)), finished=True)
    found = scrape()
    assert sum(map(len, found.values())) == before
    assert found.value("corrupted_requests_total") == 100_001
    listed = client.get("/v1/corrupted-requests", params={"limit": 10_000}).json()["corrupted_requests"]
    assert len(listed) == 10_000


class Clock:
    """A reader's clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def scraper(journal: Path, clock: Clock) -> tuple[JournalView, Scrape]:
    view = JournalView(JournalReader(journal, clock))
    client = TestClient(create_app(Settings(journal=journal), view))
    return view, lambda: parse(client.get("/metrics").text)


LIVELY = ("nanwatch_hook_active", "nanwatch_last_step_timestamp_seconds", "nanwatch_source_info")


def test_the_dead_are_shown_for_ten_minutes_and_counted_for_ever(journal: Path) -> None:
    """A dead source loses what speaks of the present after 10 minutes; its totals stay in the sums."""
    clock = Clock()
    view, scrape = scraper(journal, clock)
    with Engine(journal) as engine:
        engine.corrupt("A")
    for now in (0.0, 590.0):
        clock.now = now
        found = scrape()
        assert found["nanwatch_hook_active"] == [(SOURCE, 0.0)]
        assert all(name in found for name in LIVELY)
    clock.now = 610.0
    found = scrape()
    assert not any(name in found for name in LIVELY)
    assert found["corrupted_requests_total"] == [(REPLICA, 1.0)]
    assert found["nanwatch_nan_rows_total"] == [(SOURCE, 1.0)]
    view.close()


def test_a_process_that_hangs_stays_visible_as_not_active(journal: Path, engine: Engine) -> None:
    """Held and silent for an hour: the source still says that nobody is looking, so that an alert can."""
    clock = Clock()
    view, scrape = scraper(journal, clock)
    engine.serve()
    assert scrape().value("nanwatch_hook_active") == 1
    clock.now = 3600.0
    found = scrape()
    assert found.value("nanwatch_hook_active") == 0
    assert "nanwatch_source_info" in found
    view.close()


def test_a_deleted_folder_lowers_nothing(journal: Path, engine: Engine, scrape: Scrape) -> None:
    """The folder is deleted under both sides: counters stand still, and go on when it is made anew."""
    engine.corrupt("A")
    assert scrape().value("corrupted_requests_total") == 1
    shutil.rmtree(journal)
    found = scrape()
    assert found.value("corrupted_requests_total") == 1
    assert found.value("nanwatch_journal_problems") == 1
    engine.corrupt("B")
    found = scrape()
    assert found.value("corrupted_requests_total") == 2
    assert found.value("nanwatch_journal_problems") == 0


def test_delays_are_made_cumulative(engine: Engine, scrape: Scrape) -> None:
    """Each bucket holds the delays up to its bound, +Inf all of them, whatever bounds were written."""
    for seconds in (0.0009, 0.001, 0.003, 0.3, 60.0):
        engine.totals.add_delay(seconds)
    engine.totals.delay_counts |= {"0.7": 1, "nonsense": 1}  # bounds of another version
    engine.write()
    found = scrape()
    buckets = {labels["le"]: n for labels, n in found["nanwatch_detection_delay_seconds_bucket"]}
    expected = {"0.001": 2, "0.0025": 2, "0.005": 3, "0.25": 3, "0.5": 4, "1.0": 5, "10.0": 5, "+Inf": 7}
    assert buckets.items() >= expected.items()
    assert list(buckets.values()) == sorted(buckets.values())
    assert found.value("nanwatch_detection_delay_seconds_count") == 7
    assert found.value("nanwatch_detection_delay_seconds_sum") == pytest.approx(60.3049)


@pytest.mark.usefixtures("engine")
def test_the_info_series_says_where_a_source_runs(scrape: Scrape) -> None:
    """One series per source joins its labels with process, device and versions."""
    more = {"device": "cuda:0", "pid": "4711", "versions": "nanwatch 0.1.0, torch 2.13.0"}
    assert scrape()["nanwatch_source_info"] == [({**SOURCE, **more}, 1.0)]


def test_fail_fast_is_shown_as_the_engine_or_the_sidecar_has_it(journal: Path, scrape: Scrape) -> None:
    """1 while a living engine raises on NaN, or where this sidecar reads the same variable."""
    with Engine(journal, fail_fast=True):
        assert scrape().value("nanwatch_fail_fast_enabled") == 1
    assert scrape().value("nanwatch_fail_fast_enabled") == 0
    view = JournalView(JournalReader(journal))
    client = TestClient(create_app(Settings(journal=journal, on_nan=OnNan.RAISE), view))
    assert parse(client.get("/metrics").text).value("nanwatch_fail_fast_enabled") == 1
    view.close()


NAMES = ['q"uo\\te', "new\nline\r", "モデル 🦙", "lone \ud800 and \udfff", "n\0ul", "\u2028\x1b\x7f\x85", ""]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_model_name_survives(journal: Path, scrape: Scrape, client: TestClient, name: str) -> None:
    """Labels are valid UTF-8, whatever text the engine named its model with."""
    with Engine(journal, model_name=name) as engine:
        engine.corrupt("A")
    (labels, value) = scrape()["corrupted_requests_total"][0]
    assert value == 1
    assert labels["model_name"] == name.encode("utf-8", "backslashreplace").decode()
    assert client.get("/metrics", headers={"accept": "application/openmetrics-text"}).status_code == 200


def test_names_that_look_alike_once_repaired_are_one_series(journal: Path, scrape: Scrape) -> None:
    """Two labels that become equal when they are made fit are summed: a series never comes twice."""
    with Engine(journal, model_name="\ud800") as one, Engine(journal, model_name="\\ud800") as other:
        one.corrupt("A")
        other.corrupt("A")
        assert [value for _, value in scrape()["corrupted_requests_total"]] == [2.0]


@pytest.mark.usefixtures("engine")
def test_every_metric_has_a_help_in_words(client: TestClient) -> None:
    """Each family says what it means, in a sentence that ends."""
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    assert len(families) >= 20
    for family in families:
        assert family.documentation.endswith("."), family.name
        assert " " in family.documentation, family.name
