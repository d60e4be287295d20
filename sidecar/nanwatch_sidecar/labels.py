"""Which labels a source has on /metrics, and which sources share them."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache

from nanwatch.journal.line import Labels
from nanwatch.journal.source import Source

from .text import valid_text

REPLICA_LABELS = ("model_name", "engine", "runtime", "replica")
SOURCE_LABELS = (*REPLICA_LABELS, "host", "rank", "UUID")  # UUID is the GPU's, as DCGM's exporter names it

MOST_LABELS_AT_HAND = 4096  # sources; those of more are put together anew in each scrape

LabelValues = tuple[str, ...]
Groups = dict[LabelValues, list[Source]]


def replica_labels(source: Source) -> LabelValues:
    """Return what all ranks of one engine share: they serve the same requests."""
    return _values(source.labels)[: len(REPLICA_LABELS)]


def source_labels(source: Source) -> LabelValues:
    """Return what tells one source from another; the files of one slot share it."""
    return _values(source.labels)


@lru_cache(maxsize=MOST_LABELS_AT_HAND)
def _values(labels: Labels) -> LabelValues:
    of_replica = (labels.model_name, labels.engine, labels.runtime, labels.replica)
    return tuple(map(valid_text, (*of_replica, labels.host, labels.rank, labels.uuid)))


def grouped(sources: Iterable[Source], labels_of: Callable[[Source], LabelValues]) -> Groups:
    """Put sources of equal labels together, sorted: a scrape may hold a series only once."""
    groups: Groups = defaultdict(list)
    for source in sources:
        groups[labels_of(source)].append(source)
    return dict(sorted(groups.items()))
