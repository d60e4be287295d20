"""What /health/numeric, /healthz and /readyz say."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nanwatch.journal.clock import boot_ns
from nanwatch.journal.line import ReportLine
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.source import Source
from nanwatch.journal.totals import Totals
from nanwatch.settings import Settings
from nanwatch_sidecar.app import create_app
from nanwatch_sidecar.health import Limits, numeric_health
from nanwatch_sidecar.journal_view import JournalView
from tests.engine import Engine, corrupted, labels, start_line


def seconds_ago(seconds: float) -> dict[str, Any]:
    return {"first_seen_boot_ns": boot_ns() - round(seconds * 1e9)}


def ask(client: TestClient, **query: object) -> tuple[int, str]:
    answer = client.get("/health/numeric", params={name: str(value) for name, value in query.items()})
    body = answer.json()
    return answer.status_code, body.get("reason") or body["detail"]


def test_three_corrupted_requests_at_a_threshold_of_three_are_too_many(
    client: TestClient, engine: Engine
) -> None:
    """503 with the numbers in words at the third; the sidecar's own health does not speak of NaN."""
    engine.serve(117)
    engine.corrupt("a", "b")
    assert ask(client, requests=3)[0] == 200
    engine.corrupt("c")
    assert ask(client, requests=3) == (
        503,
        (
            "3 of 120 requests were corrupted in the last 60 s, in 1 active sources; "
            "the limit is 3 and a share of 0"
        ),
    )
    assert client.get("/healthz").json() == {"status": "ok"}


def test_health_comes_back_after_a_quiet_window(client: TestClient, engine: Engine) -> None:
    """A corrupted request leaves the window when its first NaN is older than that."""
    engine.corrupt("a", **seconds_ago(5))
    assert ask(client, window=4)[0] == 200
    assert ask(client, window=6)[0] == 503


def test_a_request_that_was_bad_long_ago_is_not_new_because_its_line_is(
    client: TestClient, engine: Engine
) -> None:
    """An entry that comes again with more NaNs does not begin a new window."""
    first = seconds_ago(100)
    engine.corrupt("a", **first)
    engine.corrupt("a", values=99, **first)
    assert ask(client)[0] == 200


@pytest.mark.parametrize(("ratio", "status"), [(0.02, 503), (0.021, 200)])
def test_a_share_can_be_asked_for_as_well(
    client: TestClient, engine: Engine, ratio: float, status: int
) -> None:
    """With a ratio both must hold: so many requests, and that share of all in the window."""
    engine.serve(98)
    engine.corrupt("a", "b")
    assert ask(client, ratio=ratio)[0] == status


def test_a_request_from_before_the_window_may_turn_bad_in_it() -> None:
    """Four requests are seen, one turns bad long after: it is 1 of 1 in the window, not 1 of 0."""
    source = Source("file", labels(), active=True)
    source.take(start_line(boot_ns=0), 0.0)
    source.take(ReportLine(10**9, 0.0, Totals(requests=4)), 0.0)
    bad = corrupted("a", first_seen_boot_ns=100 * 10**9)
    totals = Totals(requests=4, corrupted_requests=1)
    source.take(ReportLine(100 * 10**9, 0.0, totals, corrupted=(bad,)), 0.0)
    found = numeric_health([source], Limits(window_seconds=10.0, requests=1, ratio=1.0), 100.0)
    assert (found.healthy, found.corrupted, found.requests) == (False, 1, 1)


def test_the_settings_are_the_limits_and_the_query_overrides_them_for_one_probe(
    journal: Path, view: JournalView, engine: Engine
) -> None:
    """NANWATCH_HEALTH_* hold unless a probe says otherwise."""
    settings = Settings(health_window_seconds=30.0, health_requests=2, health_ratio=0.5)
    client = TestClient(create_app(settings, view))
    engine.corrupt("a")
    assert ask(client)[1].endswith("in the last 30 s, in 1 active sources; the limit is 2 and a share of 0.5")
    assert ask(client, requests=1) == (
        503,
        (
            "1 of 1 requests were corrupted in the last 30 s, in 1 active sources; "
            "the limit is 1 and a share of 0.5"
        ),
    )
    assert ask(client)[0] == 200
    assert journal.exists()


@pytest.mark.parametrize(
    ("query", "takes"),
    [
        ({"window": "0"}, "window='0' is not understood: it takes a number of seconds from 1 to 3600"),
        ({"window": "3601"}, "window='3601' is not understood: it takes a number of seconds from 1 to 3600"),
        ({"window": "nan"}, "window='nan' is not understood: it takes a number of seconds from 1 to 3600"),
        ({"requests": "0"}, "requests='0' is not understood: it takes a whole number from 1"),
        ({"requests": "1.5"}, "requests='1.5' is not understood: it takes a whole number from 1"),
        ({"ratio": "1.1"}, "ratio='1.1' is not understood: it takes a number from 0 to 1"),
        ({"ratio": ""}, "ratio='' is not understood: it takes a number from 0 to 1"),
    ],
)
def test_a_parameter_that_is_not_understood_is_refused(
    client: TestClient, query: dict[str, str], takes: str
) -> None:
    """400 with the parameter, its value and what it takes: a misspelt probe is never a healthy one."""
    assert ask(client, **query) == (400, takes)


def test_only_sources_that_live_and_count_are_looked_at(journal: Path, client: TestClient) -> None:
    """A dead engine's NaNs do not make its successor unhealthy, nor do those of annotating ranks."""
    with Engine(journal, "life-1") as engine:
        engine.corrupt("a")
        assert ask(client)[0] == 503
    assert ask(client) == (
        200,
        (
            "0 of 0 requests were corrupted in the last 60 s, in 0 active sources; "
            "the limit is 1 and a share of 0"
        ),
    )
    with Engine(journal, "life-2"), Engine(journal, counting=False, rank="1") as rank_1:
        rank_1.corrupt("b")
        code, reason = ask(client)
    assert (code, reason.startswith("0 of 0")) == (200, True)


def test_a_jump_of_the_wall_clock_does_not_make_health_flap(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours forth or back, C is what it was, and so is health."""
    engine.corrupt("a")
    for jump in (7200.0, -7200.0):
        now = 1_800_000_000.0 + jump
        monkeypatch.setattr("time.time", lambda now=now: now)
        engine.write()
        assert ask(client, window=30)[0] == 503
        assert ask(client, requests=2)[0] == 200
        assert "corrupted_requests_total" in client.get("/metrics").text
        listed = client.get("/v1/corrupted-requests").json()["corrupted_requests"]
        assert len(listed) == 1


def test_numeric_health_is_a_function_of_what_was_read(journal: Path, engine: Engine) -> None:
    """It asks no clock and no disk of its own."""
    now = [50.0]
    reader = JournalReader(journal, lambda: now[0])
    engine.corrupt("a", "b")
    reader.poll()
    limits = Limits(window_seconds=60.0, requests=2, ratio=0.0)
    found = numeric_health(reader.sources, limits, 50.0)
    assert (found.healthy, found.corrupted, found.requests, found.sources) == (False, 2, 2, 1)
    assert numeric_health(reader.sources, limits, 111.0).healthy
    assert numeric_health((), limits, 0.0).healthy
    reader.close()


def test_not_ready_names_the_folder_and_the_reason(client: TestClient, journal: Path) -> None:
    """Before any source has been seen /readyz is 503 and says where it looks and why that is empty."""
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "reason": f"no source has been seen in {journal} yet "
        f"({journal}: the journal folder cannot be read: No such file or directory); "
        "NANWATCH_JOURNAL names the folder on both sides",
        "journal": str(journal),
        "sources": 0,
        "problems": [f"{journal}: the journal folder cannot be read: No such file or directory"],
    }
    journal.mkdir(mode=0o700)
    assert client.get("/readyz").json()["problems"] == []
    assert client.get("/readyz").status_code == 503
    assert client.get("/metrics").status_code == 200


def test_problems_are_listed_and_do_not_take_readiness_away(
    client: TestClient, journal: Path, engine: Engine
) -> None:
    """Garbage and a newer version beside a good file: 200, each named, and the good file counts."""
    (journal / "garbage.jsonl").write_bytes(b"garbage\n")
    (journal / "newer.jsonl").write_text(json.dumps({"kind": "file", "version": 9}) + "\n")
    engine.corrupt("a")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (200, True)
    garbage, newer = answer.json()["problems"]
    assert garbage.startswith(f"{journal}/garbage.jsonl: the first line is not nanwatch's")
    assert newer == f"{journal}/newer.jsonl: journal version 9, this nanwatch reads 1 to 1"
    assert "nanwatch_journal_problems 2.0" in client.get("/metrics").text
    assert ask(client)[0] == 503


def test_readiness_once_reached_stays(client: TestClient, journal: Path) -> None:
    """An engine that ended was seen: its totals are still served."""
    with Engine(journal):
        pass
    assert client.get("/readyz").status_code == 200


def test_file_names_of_any_bytes_do_not_break_the_answer(client: TestClient, journal: Path) -> None:
    """A file whose name is not UTF-8 is named with escapes."""
    journal.mkdir(mode=0o700)
    (journal / "\udcff.jsonl").write_bytes(b"garbage\n")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "\\udcff.jsonl" in answer.json()["problems"][0]
