"""Requests that an annotating rank saw corrupted and the counting rank did not.

Every rank of a replica computes the same logits, so this tells of a broken GPU or link. A request
is judged once: as agreed as soon as a counting source tells of it, as disagreed when none did after
RIPE_SECONDS, or a moment after its end. The sum only grows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nanwatch.journal.kept import NEWEST, Key
from nanwatch.journal.line import CorruptedRequest
from nanwatch.journal.source import Source

from .labels import LabelValues, grouped, replica_labels

RIPE_SECONDS = 10.0
RIPE_WHEN_FINISHED_SECONDS = 2.0  # the counting rank's own line may come a moment later


class Disagreements:
    """Counts by replica; not for several threads at once."""

    def __init__(self) -> None:
        self._counts: Counter[LabelValues] = Counter()
        self._judged: dict[LabelValues, set[Key]] = {}

    @property
    def counts(self) -> Mapping[LabelValues, int]:
        """Disagreed requests by the replica's labels; 0 for those that are not in it."""
        return self._counts

    def update(self, sources: Iterable[Source], now: float) -> None:
        """Judge what is new or has become ripe."""
        for replica, group in grouped(sources, replica_labels).items():
            annotating = [source for source in group if not source.counting]
            if annotating:
                counting = [source for source in group if source.counting]
                self._judge(replica, annotating, counting, now)

    def _judge(
        self, replica: LabelValues, annotating: Sequence[Source], counting: Sequence[Source], now: float
    ) -> None:
        judged = self._judged.setdefault(replica, set())
        for source in annotating:
            for key, request in source.corrupted.items():
                if key in judged:
                    continue
                if any(key in other.corrupted for other in counting):
                    judged.add(key)
                elif _is_ripe(source, request, now):
                    judged.add(key)
                    self._counts[replica] += request.first_seen_seconds >= _complete_since(counting)
        _forget_pruned(judged, annotating)


def _is_ripe(source: Source, request: CorruptedRequest, now: float) -> bool:
    age = now - source.seen_at(request)
    return age >= (RIPE_WHEN_FINISHED_SECONDS if request.finished else RIPE_SECONDS)


def _complete_since(counting: Sequence[Source]) -> float:
    """Return since when (wall clock) every source still lists all of its requests.

    Past NEWEST a source forgets its oldest: that it does not list one of these proves nothing.
    """
    tables = [source.corrupted for source in counting if len(source.corrupted) >= NEWEST]
    return max((list(table.values())[-NEWEST].first_seen_seconds for table in tables), default=float("-inf"))


def _forget_pruned(judged: set[Key], annotating: Sequence[Source]) -> None:
    """Drop keys that no source lists any more, so that the table stays as bounded as theirs."""
    if len(judged) > 2 * sum(len(source.corrupted) for source in annotating):
        judged &= {key for source in annotating for key, _ in source.corrupted.items()}
