"""The scrape is written as prometheus_client would write it, byte for byte."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar

from nanwatch.journal.reader import JournalReader
from nanwatch_sidecar.collector import NanwatchCollector
from nanwatch_sidecar.encoding import encode
from nanwatch_sidecar.exposition import Exposition
from nanwatch_sidecar.journal_view import JournalView
from tests.engine import Engine

ACCEPTED = [
    "",
    "text/plain;version=0.0.4",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "text/plain;version=1.0.0;escaping=dots",
    "application/openmetrics-text;version=1.0.0",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
    "application/openmetrics-text;version=1.0.0;escaping=values",
    "application/openmetrics-text;version=1.0.0;escaping=dots",
    "application/openmetrics-text",
]


class Fixed(Collector):
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def families(text: str, value: float, at: float | None) -> list[Metric]:
    counter = CounterMetricFamily("some_requests_total", text or "x", labels=("b", "a"))
    counter.add_metric((text, "1"), value, exemplar=Exemplar({"request_id": text}, 1.0, at))
    counter.add_metric((text, "2"), value)
    histogram = HistogramMetricFamily("some_delay_seconds", text, labels=("a",))
    histogram.add_metric((text,), [("0.5", value), ("+Inf", value)], sum_value=value)
    info = InfoMetricFamily("some_build", text, value={"version": text})
    return [counter, GaugeMetricFamily("some_gauge", text, value=value), histogram, info]


@pytest.mark.parametrize("accept", [accept for accept in ACCEPTED if not accept.endswith(("dots", "values"))])
@given(
    text=st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(['a"b\\c\nd', "\\n", "\u00e9"]),
    value=st.floats() | st.integers(0, 2**63).map(float),
    at=st.none() | st.floats(0, 4e9),
)
def test_any_text_and_value_is_written_alike(accept: str, text: str, value: float, at: float | None) -> None:
    collector = Fixed(*families(text, value, at))
    by_library, content_type = choose_encoder(accept)
    assert encode(collector, openmetrics="openmetrics" in content_type) == by_library(collector)


@pytest.mark.parametrize("accept", ACCEPTED)
def test_our_own_scrape_is_written_alike_whatever_is_accepted(journal: Path, accept: str) -> None:
    with Engine(journal, model_name='a "model"\n') as one, Engine(journal, rank="1", uuid="") as other:
        one.serve(9)
        one.corrupt('cmpl-"1"', first_seen_seconds=1_800_000_000.25)
        other.totals.add_delay(0.3)
        reader = JournalReader(journal)
        reader.poll()
        collector = NanwatchCollector(JournalView(reader), fail_fast=False, version="1")
        registry = CollectorRegistry()
        registry.register(collector)
        by_library, content_type = choose_encoder(accept)
        scrape = Exposition(collector).render(accept, "")
        assert scrape.body == by_library(registry)
        assert scrape.headers["Content-Type"] == content_type
        reader.close()
