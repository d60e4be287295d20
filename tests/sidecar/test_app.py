"""The routes: what they answer, and how."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nanwatch_sidecar.landing import LINKS
from tests.engine import Engine

LIST = "/v1/corrupted-requests"
ROUTES = ["/", "/metrics", "/healthz", "/readyz", "/health/numeric", LIST, "/openapi.json"]


def listed(client: TestClient, **query: object) -> list[dict[str, Any]]:
    answer = client.get(LIST, params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["corrupted_requests"]
    return found


def ids(client: TestClient, **query: object) -> list[str]:
    return [entry["request_id"] for entry in listed(client, **query)]


def test_an_entry_says_which_request_where_and_since_when(client: TestClient, engine: Engine) -> None:
    """Each field of the list, with its name and type: other people's scripts read them."""
    seen = datetime(2030, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    engine.corrupt(
        "req-1", first_seen_seconds=seen.timestamp(), first_step=17, rows=2, values=64, phase="verify"
    )
    assert listed(client) == [
        {
            "request_id": "req-1",
            "engine_request_id": "req-1",
            "model_name": "llama",
            "engine": "0",
            "runtime": "torch",
            "replica": "0",
            "rank": "0",
            "host": "node-1",
            "uuid": "GPU-1",
            "life": "life-1",
            "phase": "verify",
            "first_seen": "2030-01-31T12:00:00.250000Z",
            "first_step": 17,
            "nan_values": 64,
            "nan_rows": 2,
            "finished": False,
            "counted": True,
            "drill": False,
            "ranks": 1,
        }
    ]


def test_the_newest_come_first_and_no_more_than_asked_for(client: TestClient, engine: Engine) -> None:
    """The list is ordered by first NaN, 100 long unless another limit is given."""
    for n in range(150):
        engine.corrupt(f"req-{n}", first_seen_seconds=1_800_000_000.0 + n)
    assert ids(client, limit=3) == ["req-149", "req-148", "req-147"]
    assert len(ids(client)) == 100
    assert len(ids(client, limit=10_000)) == 150


@pytest.mark.parametrize(
    "since",
    [
        "1800000001",
        "1800000001.0",
        "2027-01-15T08:00:01Z",
        "2027-01-15T09:00:01+01:00",
        "2027-01-15T09:00:01 01:00",
    ],
)
def test_since_is_an_instant_in_either_way_of_writing(client: TestClient, engine: Engine, since: str) -> None:
    """Unix seconds or RFC 3339; a plus that a shell did not escape is understood."""
    for n in range(3):
        engine.corrupt(f"req-{n}", first_seen_seconds=1_800_000_000.0 + n)
    assert ids(client, since=since) == ["req-2", "req-1"]


@pytest.mark.parametrize("since", ["yesterday", "", "nan", "inf", "-1", "1e3", "2027-01-15T08:00:01"])
def test_an_instant_that_is_not_understood_is_refused(client: TestClient, since: str) -> None:
    """400 with the value and what it takes; a time without its offset is no instant."""
    answer = client.get(LIST, params={"since": since})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"since={since!r} is not understood: it takes Unix seconds")


@pytest.mark.parametrize("limit", ["0", "10001", "ten", "-1"])
def test_a_limit_out_of_bounds_is_refused(client: TestClient, limit: str) -> None:
    """422 that names the parameter."""
    answer = client.get(LIST, params={"limit": limit})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "limit"]


def test_the_list_can_be_of_one_model(journal: Path, client: TestClient, engine: Engine) -> None:
    """`model_name` leaves out the others."""
    engine.corrupt("a")
    with Engine(journal, model_name="qwen \ud800") as other:
        other.corrupt("b")
        assert ids(client, model_name="llama") == ["a"]
        assert ids(client, model_name="qwen \\ud800") == ["b"]
        assert ids(client, model_name="gpt") == []


def test_a_request_of_many_ranks_is_listed_once_unless_all_are_asked_for(
    journal: Path, client: TestClient, engine: Engine
) -> None:
    """The list agrees with the counter; annotating ranks are shown on request, and as such."""
    engine.corrupt("a")
    with Engine(journal, counting=False, rank="1", uuid="GPU-2") as rank_1:
        rank_1.corrupt("a")
        assert ids(client) == ["a"]
        assert {(e["uuid"], e["counted"]) for e in listed(client, all_ranks=1)} == {
            ("GPU-1", True),
            ("GPU-2", False),
        }


def test_a_request_ends_with_finish_or_with_its_engine(journal: Path, client: TestClient) -> None:
    """`finished` is true once the engine is done with it, or that life of the engine is over."""
    with Engine(journal) as engine:
        engine.corrupt("a")
        engine.corrupt("b", finished=True)
        assert {e["request_id"]: e["finished"] for e in listed(client)} == {"a": False, "b": True}
    assert all(entry["finished"] for entry in listed(client))
    with Engine(journal, "life-2") as engine:
        engine.corrupt("c")
        assert {e["request_id"]: e["finished"] for e in listed(client)} == {"a": True, "b": True, "c": False}


IDS = ["x" * 300, 'q"uo\\te\n', "ümläut 🦙", "lone \ud800", "n\0ul", ""]


@pytest.mark.parametrize("request_id", IDS, ids=ascii)
def test_any_request_id_is_valid_json(client: TestClient, engine: Engine, request_id: str) -> None:
    """Ids come back as they are, save that lone surrogates are written as escapes."""
    engine.corrupt(request_id)
    answer = client.get(LIST)
    assert json.loads(answer.content.decode("utf-8")) == answer.json()
    assert ids(client) == [request_id.replace("\ud800", "\\ud800")]


@pytest.mark.parametrize("seconds", [-1.0, 1e12, 9e18])
def test_a_time_beyond_the_calendar_does_not_break_the_list(
    client: TestClient, engine: Engine, seconds: float
) -> None:
    """A clock that stood wrong costs the time of its entry, not the answer."""
    engine.corrupt("a", first_seen_seconds=seconds)
    assert listed(client)[0]["first_seen"] == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_but_get_and_head_is_allowed(client: TestClient, path: str, method: str) -> None:
    """405 with Allow on every route: the sidecar is only looked at."""
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ROUTES)
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    """HEAD has the status and headers of GET."""
    get, head = client.get(path), client.head(path)
    assert head.content == b""
    assert head.status_code == get.status_code
    assert head.headers["content-type"] == get.headers["content-type"]


def test_metrics_answers_at_its_own_path(client: TestClient) -> None:
    """/metrics is a route and does not send a scraper elsewhere."""
    assert client.get("/metrics", follow_redirects=False).status_code == 200


def test_the_landing_page_links_every_route_and_nothing_outside(client: TestClient, journal: Path) -> None:
    """`/` names the journal and leads to each route; it loads nothing from anywhere."""
    answer = client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert str(journal) in answer.text
    assert all(f'href="{path}"' in answer.text for path in LINKS)
    assert set(LINKS) == set(ROUTES) - {"/"}
    assert "://" not in answer.text
    assert all(client.get(path).status_code in {200, 503} for path in LINKS)


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_pages_that_load_scripts_from_elsewhere_are_off(client: TestClient, path: str) -> None:
    """A cluster without the internet has no page that stays blank."""
    assert client.get(path).status_code == 404


def test_the_list_is_described_in_openapi(client: TestClient) -> None:
    """Every field and parameter of the list is in /openapi.json, with its type."""
    described = client.get("/openapi.json").json()
    entry = described["components"]["schemas"]["CorruptedRequestOut"]
    assert set(entry["required"]) == set(entry["properties"])
    assert entry["properties"]["first_seen"]["format"] == "date-time"
    parameters = {p["name"]: p["schema"] for p in described["paths"][LIST]["get"]["parameters"]}
    assert set(parameters) == {"since", "limit", "model_name", "all_ranks"}
    assert (parameters["limit"]["minimum"], parameters["limit"]["maximum"]) == (1, 10_000)
    assert {"/metrics", "/healthz", "/readyz", "/health/numeric"} < set(described["paths"])


def test_an_answer_is_never_older_than_the_question(client: TestClient, engine: Engine) -> None:
    """Each route polls before it answers: what was written before the question is in the answer."""
    for n in range(20):
        engine.corrupt(f"req-{n}")
        assert ids(client, limit=1) == [f"req-{n}"]
