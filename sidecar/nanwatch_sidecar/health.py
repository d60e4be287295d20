"""Numeric health and readiness, as pure functions over what the journal says."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanwatch.journal.source import Source
from nanwatch.settings import Settings, ratio, request_count, window_seconds

MOST_PROBLEMS = 100  # that /readyz names; nanwatch_journal_problems counts them all


class QueryError(ValueError):
    """A query parameter is not understood; the message names it, its value and what it takes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Corrupted requests are too many at `requests` in the window, if they are `ratio` of all."""

    window_seconds: float
    requests: int
    ratio: float

    @classmethod
    def of(
        cls,
        settings: Settings,
        window: str | None = None,
        requests: str | None = None,
        share: str | None = None,
    ) -> "Limits":
        """Take the settings, and from the query what it overrides.

        Raises:
            QueryError: a parameter of the query is not understood.
        """
        return cls(
            settings.health_window_seconds if window is None else _parse("window", window),
            settings.health_requests if requests is None else int(_parse("requests", requests)),
            settings.health_ratio if share is None else _parse("ratio", share),
        )


@dataclass(frozen=True, slots=True)
class NumericHealth:
    """Whether the engines' numbers can be trusted now, and why."""

    healthy: bool
    reason: str
    corrupted: int
    requests: int
    sources: int  # active and counting


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a source has been seen, and what cannot be read."""

    ready: bool
    reason: str
    journal: str
    sources: int
    problems: tuple[str, ...]


def numeric_health(sources: Iterable[Source], limits: Limits, now: float) -> NumericHealth:
    """Judge the last window of the sources that are active and count."""
    looked_at = [source for source in sources if source.active and source.counting]
    since = now - limits.window_seconds
    corrupted = sum(source.corrupted_since(since) for source in looked_at)
    seen = round(sum(source.requests_since(since) for source in looked_at))
    requests = max(seen, corrupted)  # one that was first seen before the window may turn bad in it
    too_many = corrupted >= limits.requests and corrupted >= limits.ratio * requests
    return NumericHealth(
        not too_many,
        _reason(corrupted, requests, len(looked_at), limits),
        corrupted,
        requests,
        len(looked_at),
    )


def readiness(folder: Path, sources: Sequence[Source], problems: tuple[str, ...]) -> Readiness:
    """Say whether any source has been seen; problems do not take readiness away, but are named."""
    named = (*problems[:MOST_PROBLEMS], *_and_more(len(problems) - MOST_PROBLEMS))
    if sources:
        reason = f"{len(sources)} sources have been seen"
    else:
        why = f" ({'; '.join(named)})" if named else ""
        reason = (
            f"no source has been seen in {folder} yet{why}; NANWATCH_JOURNAL names the folder on both sides"
        )
    return Readiness(bool(sources), reason, str(folder), len(sources), named)


def _and_more(problems: int) -> tuple[str, ...]:
    return (f"... and {problems} more",) if problems > 0 else ()


_PARAMETERS = {
    "window": (window_seconds, "a number of seconds from 1 to 3600"),
    "requests": (request_count, "a whole number from 1"),
    "ratio": (ratio, "a number from 0 to 1"),
}


def _parse(name: str, value: str) -> float:
    parse, takes = _PARAMETERS[name]
    try:
        return parse(value)
    except ValueError:
        raise QueryError(f"{name}={value!r} is not understood: it takes {takes}") from None


def _reason(corrupted: int, requests: int, sources: int, limits: Limits) -> str:
    found = f"{corrupted} of {requests} requests were corrupted in the last {limits.window_seconds:g} s"
    limit = f"the limit is {limits.requests} and a share of {limits.ratio:g}"
    return f"{found}, in {sources} active sources; {limit}"
