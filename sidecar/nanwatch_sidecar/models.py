"""What /v1/corrupted-requests answers, as OpenAPI describes it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

from pydantic import BaseModel, Field

from nanwatch.journal.line import CorruptedRequest
from nanwatch.journal.source import Source

from .labels import grouped, replica_labels
from .text import valid_text

_UNIX_SECONDS = re.compile(r"\d{1,12}(\.\d*)?", re.ASCII)
REQUESTS_A_PIECE = 200
_LATEST_SECONDS = 253_402_300_799.0  # the last second of the year 9999


class CorruptedRequestOut(BaseModel):
    """One corrupted request, as one source saw it."""

    request_id: Annotated[
        str, Field(description="As the client knows it; lone surrogates are written as escapes.")
    ]
    engine_request_id: Annotated[
        str, Field(description="The engine's own id, where it makes one; else the same.")
    ]
    model_name: str
    engine: Annotated[str, Field(description="The engine's index.")]
    runtime: Annotated[str, Field(description="vllm, transformers, torch, ...")]
    replica: str
    rank: str
    host: str
    uuid: Annotated[str, Field(description="The GPU's UUID; empty on a CPU.")]
    life: Annotated[str, Field(description="One start of the engine; the same on all of its ranks.")]
    phase: Annotated[str, Field(description="Of the first NaN: prompt, prefill, decode or verify.")]
    first_seen: Annotated[datetime, Field(description="When the step of its first NaN was seen, UTC.")]
    first_step: Annotated[int, Field(description="The source's own number of that step, from 1.")]
    nan_values: Annotated[int, Field(description="NaN values so far.")]
    nan_rows: Annotated[int, Field(description="Logits rows with a NaN so far.")]
    finished: Annotated[bool, Field(description="The engine is done with it, or that start of it has ended.")]
    counted: Annotated[bool, Field(description="False: a rank that only annotates saw it, or it is a drill.")]
    drill: Annotated[bool, Field(description="True: `nanwatch drill` planted it; it never happened.")]
    ranks: Annotated[int, Field(description="How many ranks of the replica saw it; 1 where only one looks.")]


class CorruptedRequests(BaseModel):
    """The newest corrupted requests. The list is bounded, the counters on /metrics are not."""

    corrupted_requests: Annotated[list[CorruptedRequestOut], Field(description="Newest first.")]

    @classmethod
    def written(cls, requests: Iterable[CorruptedRequestOut]) -> Iterator[str]:
        """Yield the answer as JSON, piece by piece: 10,000 requests at once would take 22 MB, for good."""
        yield '{"corrupted_requests":['
        between = ""
        remaining = iter(requests)
        while piece := [request.model_dump_json() for request in islice(remaining, REQUESTS_A_PIECE)]:
            yield between + ",".join(piece)
            between = ","
        yield "]}"


class ErrorOut(BaseModel):
    """What was wrong with the question."""

    detail: str


def newest_requests(
    sources: Sequence[Source], *, since: float | None, limit: int, model_name: str | None, all_ranks: bool
) -> list[tuple[CorruptedRequest, Source, int]]:
    """Return the newest corrupted requests, newest first, each once unless `all_ranks`.

    With each its source, and how many ranks of the replica saw it.
    """
    found = [
        (request, source)
        for source in sources
        if (source.counting or all_ranks) and model_name in (None, valid_text(source.labels.model_name))
        for request in source.corrupted.values()
        if since is None or request.first_seen_seconds >= since
    ]
    # In place: nlargest makes a tuple and a number for each, which is a megabyte for 10,000.
    found.sort(key=lambda pair: pair[0].first_seen_seconds, reverse=True)
    listing = [source for source in sources if len(source.corrupted)]  # 64 ranks, of which most saw none
    replicas = grouped(listing, replica_labels)
    return [
        (request, source, _ranks_that_saw(request, replicas[replica_labels(source)]))
        for request, source in found[:limit]
    ]


def instant(value: str) -> float:
    """Unix seconds of an instant that is written as such or by RFC 3339.

    Raises:
        ValueError: it is neither, or has no offset from UTC.
    """
    if _UNIX_SECONDS.fullmatch(value):
        return float(value)
    # In a query a "+" that nobody escaped arrives as a space.
    moment = datetime.fromisoformat(value[:-6] + value[-6:].replace(" ", "+"))
    if moment.tzinfo is None:
        raise ValueError(value)
    return moment.timestamp()


def _ranks_that_saw(request: CorruptedRequest, replica: Sequence[Source]) -> int:
    key = request.key
    return sum(key in source.corrupted for source in replica)


def described(request: CorruptedRequest, source: Source, ranks: int) -> CorruptedRequestOut:
    """Say what one source, and how many ranks with it, know of one request."""
    labels = source.labels
    texts = {
        "request_id": request.shown_id,
        "engine_request_id": request.request_id,
        "model_name": labels.model_name,
        "engine": labels.engine,
        "runtime": labels.runtime,
        "replica": labels.replica,
        "rank": labels.rank,
        "host": labels.host,
        "uuid": labels.uuid,
        "life": request.life,
        "phase": request.phase,
    }
    return CorruptedRequestOut(
        **{name: valid_text(text) for name, text in texts.items()},
        first_seen=_moment(request.first_seen_seconds),
        first_step=request.first_step,
        nan_values=request.values,
        nan_rows=request.rows,
        finished=request.finished or not (source.held and source.is_of_current_life(request)),
        counted=source.counting and not labels.is_drill,
        drill=labels.is_drill,
        ranks=ranks,
    )


def _moment(seconds: float) -> datetime:
    """Return the time in UTC; what is beyond the calendar is put at the beginning."""
    return datetime.fromtimestamp(seconds if 0 <= seconds <= _LATEST_SECONDS else 0.0, UTC)
