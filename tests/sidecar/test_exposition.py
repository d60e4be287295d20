"""How /metrics is negotiated."""

import gzip
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.engine import Engine

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.mark.parametrize(
    ("accept", "content_type", "ends_with_eof"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", False),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        (
            f"{OPENMETRICS},text/plain;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            True,
        ),
        ("application/openmetrics-text;version=nonsense", "text/plain; version=0.0.4; charset=utf-8", False),
        ("", "text/plain; version=0.0.4; charset=utf-8", False),
    ],
)
def test_the_scraper_gets_the_format_it_accepts(
    client: TestClient, accept: str, content_type: str, *, ends_with_eof: bool
) -> None:
    """OpenMetrics where it is asked for, else the text format, also for nonsense."""
    answer = client.get("/metrics", headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(content_type)
    assert answer.text.endswith("# EOF\n") is ends_with_eof


def raw(client: TestClient, encoding: str) -> tuple[bytes, dict[str, Any]]:
    with client.stream("GET", "/metrics", headers={"accept-encoding": encoding}) as answer:
        return b"".join(answer.iter_raw()), dict(answer.headers)


@pytest.mark.usefixtures("engine")
def test_gzip_is_used_where_it_is_accepted(client: TestClient) -> None:
    """A scrape is compressed for who accepts gzip, and plain for who does not."""
    plain, headers = raw(client, "identity")
    assert "content-encoding" not in headers
    packed, headers = raw(client, "gzip, deflate")
    assert headers["content-encoding"] == "gzip"
    assert len(packed) < len(plain) / 3
    assert b"corrupted_requests_total" in gzip.decompress(packed)


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("br, GZIP ; q=0.5", True),
        ("gzip;q=nonsense", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, identity", False),
        ("*", False),
        ("gzipped", False),
    ],
)
def test_gzip_can_be_refused(client: TestClient, accepted: str, *, is_packed: bool) -> None:
    """A weight of 0 means: not this one."""
    assert ("content-encoding" in raw(client, accepted)[1]) is is_packed


@pytest.mark.usefixtures("engine")
def test_a_scrape_may_ask_for_some_names_only(client: TestClient) -> None:
    """`name[]` restricts a scrape to these samples."""
    wanted = ["corrupted_requests_total", "nanwatch_hook_active"]
    lines = client.get("/metrics", params={"name[]": wanted}).text.splitlines()
    assert {line.split("{")[0] for line in lines if not line.startswith("#")} == set(wanted)


def test_created_series_are_not_shown(client: TestClient, engine: Engine) -> None:
    """A counter is one series, not one more with its birth."""
    engine.corrupt("A")
    assert "_created" not in client.get("/metrics", headers={"accept": OPENMETRICS}).text
