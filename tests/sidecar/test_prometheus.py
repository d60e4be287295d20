"""A real Prometheus scrapes a real sidecar: what it makes of the metrics is what counts."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.engine import Engine
from tests.tools import Prometheus

from .running import Sidecar

pytestmark = pytest.mark.prometheus

MODEL = '{model_name="llama"}'


@dataclass(frozen=True)
class Scraped:
    """An engine whose sidecar is scraped each second."""

    engine: Engine
    sidecar: Sidecar
    prometheus: Prometheus

    def counted(self) -> float | None:
        return self.prometheus.value(f"corrupted_requests_total{MODEL}")


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    journal = tmp_path_factory.mktemp("scraped") / "journal"
    with (
        Engine(journal) as engine,
        Sidecar(journal) as sidecar,
        Prometheus(f"127.0.0.1:{sidecar.port}") as prometheus,
    ):
        yield Scraped(engine, sidecar, prometheus)


def test_increase_sees_the_very_first_event(scraped: Scraped) -> None:
    """The series stood at 0 before its first event, so increase() shows that one, and no alert misses it."""
    assert scraped.counted() == 0
    scraped.engine.corrupt("cmpl-first")
    scraped.prometheus.wait_for_scrape()
    assert scraped.counted() == 1
    increase = scraped.prometheus.value(f"increase(corrupted_requests_total{MODEL}[1m])")
    assert increase == pytest.approx(1, abs=0.6)
    assert scraped.prometheus.value("nanwatch_hook_active") == 1


def test_the_request_behind_the_counter_can_be_asked_for(scraped: Scraped) -> None:
    """Prometheus scrapes OpenMetrics by itself, and keeps the request's id as an exemplar."""
    scraped.engine.corrupt("cmpl-exemplar")
    scraped.prometheus.wait_for_scrape()
    assert {"request_id": "cmpl-exemplar"} in scraped.prometheus.exemplars("corrupted_requests_total")


UGLY = [
    "x" * 300,
    'q"uo\\te\nnew line',
    "ümläut 🦙",
    "lone \ud800 surrogate",
    "n\0ul",
    "",
    "\x7f\x1b",
    "} # {",
]


def test_no_request_id_and_no_name_loses_a_scrape(scraped: Scraped) -> None:
    """Ids and names of any text are counted, and the scrape that shows them is taken."""
    before = scraped.counted() or 0
    path = scraped.engine.writer.path
    assert path is not None
    engines = [Engine(path.parent, model_name=text, host=text) for text in UGLY]
    for engine, text in zip(engines, UGLY, strict=True):
        scraped.engine.corrupt(text)
        engine.corrupt(text)
    target = scraped.prometheus.wait_for_scrape()
    assert (target["health"], target["lastError"]) == ("up", "")
    assert scraped.counted() == before + len(UGLY)
    found = scraped.prometheus.query("corrupted_requests_total")
    assert len(found) == len(UGLY) + 1
    shown = {labels.get("model_name", ""): value for labels, value in found}
    assert shown['q"uo\\te\nnew line'] == shown["ümläut 🦙"] == shown["lone \\ud800 surrogate"] == 1
    for engine in engines:
        engine.die()


@pytest.mark.parametrize("text", UGLY[:4], ids=["long", "escapes", "not ASCII", "surrogate"])
def test_no_newest_id_loses_a_scrape(scraped: Scraped, text: str) -> None:
    """The exemplar is of the newest request: whatever its id is, the scrape is taken."""
    scraped.engine.corrupt(text, n=1)
    target = scraped.prometheus.wait_for_scrape()
    assert (target["health"], target["lastError"]) == ("up", "")
