"""The newest corrupted request's id on the counter."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from fastapi.testclient import TestClient

from nanwatch_sidecar.exemplars import LABEL, MOST_CODE_POINTS
from tests.engine import Engine


class Exemplar(NamedTuple):
    """What stands after the counter's value."""

    request_id: str
    value: float
    seconds: float


_SAMPLE = re.compile(r'corrupted_requests_total\{.*\} \S+ # \{request_id="(.*)"\} (\S+) (\S+)')


def exemplar(client: TestClient) -> Exemplar | None:
    text = client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"}).text
    (found,) = [line for line in text.splitlines() if " # {" in line] or [""]
    match = _SAMPLE.fullmatch(found)
    if match is None:
        return None
    unescaped = re.sub(r'\\(["\\])', r"\1", match[1])
    return Exemplar(unescaped, float(match[2]), float(match[3]))


def test_the_newest_request_is_the_exemplar(client: TestClient, engine: Engine) -> None:
    """The counter points at the request that moved it last, at the time of its first NaN."""
    assert exemplar(client) is None
    engine.corrupt("old", first_seen_seconds=1_800_000_000.25)
    engine.corrupt("new", first_seen_seconds=1_800_000_001.5)
    assert exemplar(client) == ("new", 1.0, 1_800_000_001.5)


def test_of_several_sources_the_newest_request_is_the_exemplar(
    journal: Path, client: TestClient, engine: Engine
) -> None:
    """Files that share the counter's labels share its exemplar: the newest request of them all."""
    engine.corrupt("new", first_seen_seconds=1_800_000_001.5)
    with Engine(journal, "life-2") as other:
        other.corrupt("old", first_seen_seconds=1_800_000_000.25)
        assert exemplar(client) == ("new", 1.0, 1_800_000_001.5)


LONGEST = MOST_CODE_POINTS - len(LABEL)


@pytest.mark.parametrize("fit", ["x" * LONGEST, 'q"uo\\te', " ", "~!{}=,#"], ids=ascii)
def test_a_printable_ascii_id_within_the_limit_is_an_exemplar(
    client: TestClient, engine: Engine, fit: str
) -> None:
    """Label name and value together take up to 128 code points, quotes and backslashes among them."""
    engine.corrupt(fit)
    found = exemplar(client)
    assert found is not None
    assert found.request_id == fit


UNFIT = ["x" * (LONGEST + 1), "x" * 300, "new\nline", "ümlaut", "lone \ud800", "n\0ul", "del\x7f", ""]


@pytest.mark.parametrize("unfit", UNFIT, ids=ascii)
def test_any_other_id_is_left_out_and_counted(client: TestClient, engine: Engine, unfit: str) -> None:
    """An id that Prometheus would refuse is no exemplar: the newest one that is fit stays, C grows."""
    engine.corrupt(unfit)
    assert exemplar(client) is None
    engine.corrupt("fit")
    engine.corrupt(unfit, n=1)
    found = exemplar(client)
    assert found is not None
    assert found.request_id == "fit"
    assert " 3.0" in client.get("/metrics", params={"name[]": "corrupted_requests_total"}).text


@pytest.mark.usefixtures("engine")
def test_ranks_that_only_annotate_give_no_exemplar(journal: Path, client: TestClient) -> None:
    """The exemplar is of a request that the counter counts."""
    with Engine(journal, counting=False, rank="1") as other:
        other.corrupt("seen by rank 1 only")
    assert exemplar(client) is None


@pytest.mark.parametrize("seconds", [-1.0, 1e12, 9e18])
def test_a_time_that_is_none_gives_no_exemplar(client: TestClient, engine: Engine, seconds: float) -> None:
    """A clock that stands before 1970 or after 9999 costs the exemplar, not the scrape."""
    engine.corrupt("A", first_seen_seconds=seconds)
    assert exemplar(client) is None
