"""Metrics over HTTP: text or OpenMetrics as the scraper accepts, gzip, and `name[]`."""

import gzip
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from .collector import NanwatchCollector
from .encoding import encode

_OPENMETRICS = "application/openmetrics-text"
_RENAMING = ("escaping=dots", "escaping=values")  # here even names like ours are written in another way
_IS_ZERO = re.compile(r"q=0(\.0*)?")
_QUICK = 1  # gzip level: a tenth of the size at once beats a twelfth later


@dataclass(frozen=True, slots=True)
class Scrape:
    """One rendered scrape."""

    body: bytes
    headers: dict[str, str]


class Exposition:
    """A collector as scrapers ask for it."""

    def __init__(self, collector: NanwatchCollector) -> None:
        self._collector = collector
        self._registry = CollectorRegistry()
        self._registry.register(collector)

    def render(self, accept: str, accept_encoding: str, names: Sequence[str] = ()) -> Scrape:
        """Render what the collector holds, restricted to samples of `names` where there are any."""
        written_by_library, content_type = _encoder(accept)
        openmetrics = content_type.startswith(_OPENMETRICS)
        chosen: Collector = self._registry.restricted_registry(names) if names else self._registry
        if content_type.endswith(_RENAMING):
            body = written_by_library(chosen)
        elif names:
            body = encode(chosen, openmetrics=openmetrics)
        else:
            body = self._collector.written(openmetrics=openmetrics)
        return _packed(body, content_type, accept_encoding)


def _packed(body: bytes, content_type: str, accept_encoding: str) -> Scrape:
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if _takes_gzip(accept_encoding):
        body = gzip.compress(body, _QUICK)
        headers["Content-Encoding"] = "gzip"
    return Scrape(body, headers)


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named, and not as "gzip;q=0", which refuses it."""
    codings = (coding.replace(" ", "").lower().partition(";") for coding in accept_encoding.split(","))
    return any(name == "gzip" and not _IS_ZERO.fullmatch(weight) for name, _, weight in codings)


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        return choose_encoder("")
