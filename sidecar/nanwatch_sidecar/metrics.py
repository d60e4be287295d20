"""What /metrics says: every metric name is here and only here.

Three functions build all families, each from sources that are grouped by their labels. Sources of equal
labels are summed; totals of the dead stay in the sums, so that nothing falls.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from nanwatch.journal.source import Source
from nanwatch.journal.totals import DELAY_BOUNDS_SECONDS, DROP_REASONS

from .exemplars import newest_exemplar
from .labels import REPLICA_LABELS, SOURCE_LABELS, Groups, LabelValues
from .text import valid_text

T = TypeVar("T")

# Counters of a source, by the name of their cell in the journal's totals.
WHERE = {
    "steps": ("nanwatch_steps_total", "Engine steps whose logits were looked at."),
    "rows": ("nanwatch_rows_total", "Logits rows that were looked at, padding left out."),
    "nan_rows": ("nanwatch_nan_rows_total", "Logits rows of requests that held a NaN."),
    "nan_values": ("nanwatch_nan_values_total", "NaN values in logits rows of requests."),
    "padding_nan_rows": (
        "nanwatch_padding_nan_rows_total",
        "Rows that belong to no request (padding, warm-up) and held a NaN; they corrupt nothing.",
    ),
    "unattributed_nan_rows": (
        "nanwatch_unattributed_nan_rows_total",
        "Rows that held a NaN and could not be charged to a request.",
    ),
    "posinf_rows": (
        "nanwatch_posinf_rows_total",
        "Logits rows of requests that held +inf: often the step before NaN; they make no corrupted request.",
    ),
    "fully_masked_rows": (
        "nanwatch_fully_masked_rows_total",
        "Logits rows of requests that were -inf from end to end, of which a sampler makes NaN.",
    ),
    "journal_errors": (
        "nanwatch_journal_errors_total",
        "Writes to the journal that failed; what they held is kept in memory and written later.",
    ),
    "queue_full": (
        "nanwatch_queue_full_total",
        "Per-request counts that the caller's own queue had no place for.",
    ),
    "dropped_entries": (
        "nanwatch_dropped_entries_total",
        "Corrupted requests whose description was let go before it was written; they are counted.",
    ),
    "kv_poisoned_blocks": (
        "nanwatch_kv_poisoned_blocks_total",
        "KV cache blocks in which NaN was found, and which no request is given with it.",
    ),
}


def of_replicas(by_replica: Groups, drills: Groups, disagreements: Mapping[LabelValues, int]) -> list[Metric]:
    """Return the families with a series for each replica; a replica of drills alone has but one."""
    return [
        _corrupted_requests(by_replica),
        _requests(by_replica),
        _detection_delay(by_replica),
        _fail_fast_trips(by_replica),
        _aborted_requests(by_replica),
        _rank_disagreements(by_replica, disagreements),
        _drills(by_replica, drills),
    ]


def of_sources(by_source: Groups, remembered: Groups) -> list[Metric]:
    """Return the families with series for each source; `remembered` leaves out those that are long dead."""
    return [
        *(_where(cell, by_source) for cell in WHERE),
        _quarantined_blocks(remembered),
        _dropped_steps(by_source),
        *_liveness(remembered),
        _source_info(remembered),
    ]


def of_the_sidecar(
    sources: Iterable[Source], problems: Sequence[str], *, fail_fast: bool, version: str
) -> list[Metric]:
    """Return the families without labels of a source."""
    return [_fail_fast_enabled(sources, here=fail_fast), _journal_problems(problems), _build_info(version)]


def in_order(replicas: Sequence[T], sources: Sequence[T], sidecar: Sequence[T]) -> list[T]:
    """Put what belongs to each family, of the three functions above, where a scrape has it."""
    corrupted, requests, delay, *others = replicas
    *where, source_info = sources
    fail_fast, *own = sidecar
    return [corrupted, requests, *where, delay, source_info, fail_fast, *others, *own]


def _corrupted_requests(by_replica: Groups) -> Metric:
    family = CounterMetricFamily(
        "corrupted_requests_total",
        "Requests with a NaN in their logits at any step, each counted once, at its first NaN.",
        labels=REPLICA_LABELS,
    )
    for labels, sources in by_replica.items():
        exemplar = newest_exemplar(source for source in sources if source.counting)
        family.add_metric(labels, sum(s.corrupted_requests for s in sources), exemplar=exemplar)
    return family


def _requests(by_replica: Groups) -> Metric:
    family = CounterMetricFamily(
        "nanwatch_requests_total", "Requests seen, corrupted or not.", labels=REPLICA_LABELS
    )
    for labels, sources in by_replica.items():
        family.add_metric(labels, sum(source.requests for source in sources))
    return family


def _where(cell: str, by_source: Groups) -> Metric:
    name, meaning = WHERE[cell]
    family = CounterMetricFamily(name, meaning, labels=SOURCE_LABELS)
    for labels, sources in by_source.items():
        family.add_metric(labels, sum(getattr(source.totals, cell) for source in sources))
    return family


def _quarantined_blocks(by_source: Groups) -> Metric:
    family = GaugeMetricFamily(
        "nanwatch_quarantined_blocks",
        "KV cache blocks that are held back from reuse now, because of the NaN in them.",
        labels=SOURCE_LABELS,
    )
    for labels, sources in by_source.items():
        family.add_metric(labels, sum(source.quarantined_blocks for source in sources))
    return family


def _dropped_steps(by_source: Groups) -> Metric:
    family = CounterMetricFamily(
        "nanwatch_dropped_steps_total",
        "Engine steps that nobody looked at, by reason; 0 in health.",
        labels=(*SOURCE_LABELS, "reason"),
    )
    for labels, sources in by_source.items():
        steps = dict.fromkeys(DROP_REASONS, 0)
        for reason, count in (item for source in sources for item in source.totals.dropped_steps.items()):
            steps[valid_text(reason)] = steps.get(valid_text(reason), 0) + count
        for reason, count in steps.items():
            family.add_metric((*labels, reason), count)
    return family


def _liveness(by_source: Groups) -> tuple[Metric, Metric]:
    active = GaugeMetricFamily(
        "nanwatch_hook_active",
        "1 while the source's process lives, looks at its engine and wrote to its journal within 10 seconds.",
        labels=SOURCE_LABELS,
    )
    last_step = GaugeMetricFamily(
        "nanwatch_last_step_timestamp_seconds",
        "Unix time of the last step that was looked at; 0 before the first.",
        labels=SOURCE_LABELS,
    )
    for labels, sources in by_source.items():
        active.add_metric(labels, any(source.active for source in sources))
        last_step.add_metric(labels, max(source.last_step_seconds for source in sources))
    return active, last_step


def _detection_delay(by_replica: Groups) -> Metric:
    family = HistogramMetricFamily(
        "nanwatch_detection_delay_seconds",
        "Time from the step that made a corrupted request's first NaN to its line in the journal.",
        labels=REPLICA_LABELS,
    )
    for labels, sources in by_replica.items():
        family.add_metric(labels, _buckets(sources), sum(s.totals.delay_sum_seconds for s in sources))
    return family


def _buckets(sources: Iterable[Source]) -> list[tuple[str, float]]:
    """Return (upper bound, delays up to it), made cumulative: counts 1, 0, 2 -> 1, 1, 3."""
    counts = [0] * (len(DELAY_BOUNDS_SECONDS) + 1)
    for bound, count in (item for source in sources for item in source.totals.delay_counts.items()):
        counts[_bucket_of(bound)] += count
    bounds = (*DELAY_BOUNDS_SECONDS, float("inf"))
    return [(_written(bound), sum(counts[: i + 1])) for i, bound in enumerate(bounds)]


def _written(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


def _bucket_of(bound: str) -> int:
    """Return the bucket of a bound as the journal writes it; an unknown one goes to the next greater."""
    try:
        return bisect_left(DELAY_BOUNDS_SECONDS, float(bound))
    except ValueError:
        return len(DELAY_BOUNDS_SECONDS)


def _source_info(by_source: Groups) -> Metric:
    family = InfoMetricFamily(
        "nanwatch_source",
        "One for each source that lives, or died within 10 minutes: where it runs, and on what.",
        labels=(*SOURCE_LABELS, "device", "pid", "versions"),
    )
    for labels, sources in by_source.items():
        for process in sorted(set(map(_process_of, sources))):
            family.add_metric((*labels, *process), {})
    return family


def _process_of(source: Source) -> LabelValues:
    if source.start is None:
        return ("", "", "")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(source.start.versions.items()))
    return (valid_text(source.start.device), str(source.start.pid), valid_text(versions))


def _fail_fast_enabled(sources: Iterable[Source], *, here: bool) -> Metric:
    asked_for = any(source.held and source.start is not None and source.start.fail_fast for source in sources)
    return GaugeMetricFamily(
        "nanwatch_fail_fast_enabled",
        "1 while a living engine raises on a corrupted request, or this sidecar was told to end on one.",
        value=here or asked_for,
    )


def _fail_fast_trips(by_replica: Groups) -> Metric:
    family = CounterMetricFamily(
        "nanwatch_fail_fast_trips_total", "Times that fail-fast raised in an engine.", labels=REPLICA_LABELS
    )
    for labels, sources in by_replica.items():
        family.add_metric(labels, sum(source.totals.fail_fast_trips for source in sources))
    return family


def _aborted_requests(by_replica: Groups) -> Metric:
    family = CounterMetricFamily(
        "nanwatch_aborted_requests_total",
        "Corrupted requests that were ended with an error, so that the others run on.",
        labels=REPLICA_LABELS,
    )
    for labels, sources in by_replica.items():
        family.add_metric(labels, sum(source.totals.aborted_requests for source in sources))
    return family


def _rank_disagreements(by_replica: Groups, counts: Mapping[LabelValues, int]) -> Metric:
    family = CounterMetricFamily(
        "nanwatch_rank_disagreements_total",
        "Requests that an annotating rank saw corrupted and the counting rank did not.",
        labels=REPLICA_LABELS,
    )
    for labels in by_replica:
        family.add_metric(labels, counts.get(labels, 0))
    return family


def _drills(by_replica: Groups, drills: Groups) -> Metric:
    """Return what was planted: at 0 for each replica, so that increase() sees a first drill too."""
    family = CounterMetricFamily(
        "nanwatch_drill_requests_total",
        "Corrupted requests that `nanwatch drill` planted to try the alert; they never happened.",
        labels=(*REPLICA_LABELS, "drill"),
    )
    for labels in sorted({*by_replica, *drills}):
        planted = drills.get(labels, [])
        total = sum(source.corrupted_requests for source in planted)
        family.add_metric((*labels, "1"), total, exemplar=newest_exemplar(planted))
    return family


def _journal_problems(problems: Sequence[str]) -> Metric:
    return GaugeMetricFamily(
        "nanwatch_journal_problems",
        "What this sidecar could not read at its last poll; /readyz says it in words.",
        value=len(problems),
    )


def _build_info(version: str) -> Metric:
    return InfoMetricFamily("nanwatch_build", "The version of this sidecar.", value={"version": version})
