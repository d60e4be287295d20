"""A journal folder, the sidecar's view of it, and a client that asks the app without a network."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from nanwatch.journal.reader import JournalReader
from nanwatch.settings import Settings
from nanwatch_sidecar.app import create_app
from nanwatch_sidecar.journal_view import JournalView
from tests.engine import Engine


@pytest.fixture
def view(journal: Path) -> Iterator[JournalView]:
    made = JournalView(JournalReader(journal))
    yield made
    made.close(5)


@pytest.fixture
def client(journal: Path, view: JournalView) -> TestClient:
    return TestClient(create_app(Settings(journal=journal), view))


@pytest.fixture
def engine(journal: Path) -> Iterator[Engine]:
    with Engine(journal) as made:
        yield made


class Metrics(dict[str, list[tuple[dict[str, str], float]]]):
    """A parsed scrape: sample name -> (labels, value)."""

    def value(self, name: str, **labels: str) -> float:
        """Return the one sample that has these labels among its own."""
        found = [value for own, value in self[name] if own.items() >= labels.items()]
        assert len(found) == 1, f"{name}{labels}: {found}"
        return found[0]


def parse(text: str) -> Metrics:
    metrics = Metrics()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metrics.setdefault(sample.name, []).append((sample.labels, sample.value))
    return metrics


@pytest.fixture
def scrape(client: TestClient) -> Callable[[], Metrics]:
    """Scrape /metrics in the text format."""

    def now() -> Metrics:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        return parse(answer.text)

    return now
