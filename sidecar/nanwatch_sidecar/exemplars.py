"""The newest corrupted request's id, as an exemplar that Prometheus accepts.

One bad exemplar makes Prometheus refuse the whole scrape: an id that is not printable ASCII, or
with which label name and value are more than 128 code points, is left out.
Source: OpenMetrics 1.0, "Exemplars".
"""

import re
from collections.abc import Iterable

from prometheus_client.samples import Exemplar

from nanwatch.journal.source import Source

LABEL = "request_id"
MOST_CODE_POINTS = 128
_FIT = re.compile(rf"[ -~]{{1,{MOST_CODE_POINTS - len(LABEL)}}}")
_LATEST_SECONDS = 253_402_300_799.0  # the last second of the year 9999; a float beyond it is no time


def newest_exemplar(sources: Iterable[Source]) -> Exemplar | None:
    """Return the exemplar of the newest corrupted request whose id is fit to be one."""
    found = [exemplar for exemplar in map(_newest_of, sources) if exemplar is not None]
    return max(found, key=lambda exemplar: float(exemplar.timestamp or 0), default=None)


def _newest_of(source: Source) -> Exemplar | None:
    for request in source.corrupted.newest_first():
        if _FIT.fullmatch(request.shown_id) and 0 <= request.first_seen_seconds <= _LATEST_SECONDS:
            return Exemplar({LABEL: request.shown_id}, 1.0, request.first_seen_seconds)
    return None
