"""The view as a scrape: families for prometheus_client, or text that is put together from pieces.

A piece is what one source, or one replica, has in each family. It is kept until something of it changes: of
64 sources that write ten times a second, a scrape meets three or four that wrote since the last one.
"""

from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nanwatch.journal.source import Source

from .encoding import bodies, heads, joined
from .journal_view import JournalView
from .labels import Groups, LabelValues, grouped, replica_labels, source_labels
from .metrics import in_order, of_replicas, of_sources, of_the_sidecar

FORGET_DEAD_AFTER_SECONDS = 600.0

State = tuple[object, ...]  # of all that a piece is made from: while it is equal, the piece is right


class NanwatchCollector(Collector):
    """Shows the view as it is, under its lock; whoever scrapes asks the view to poll first."""

    def __init__(self, view: JournalView, *, fail_fast: bool, version: str) -> None:
        self._view, self._fail_fast, self._version = view, fail_fast, version
        self._heads = {how: heads(self.describe(), openmetrics=how) for how in (False, True)}
        self._pieces = {how: _Pieces(openmetrics=how) for how in (False, True)}

    def describe(self) -> list[Metric]:
        """Return the families without samples: their names, for `name[]`."""
        return in_order(of_replicas({}, {}, {}), of_sources({}, {}), self._own(()))

    def collect(self) -> list[Metric]:
        """Return every family with its samples."""
        view = self._view
        with view.lock:
            by_replica, by_source = (
                grouped(view.sources, replica_labels),
                grouped(view.sources, source_labels),
            )
            return in_order(
                of_replicas(by_replica, grouped(view.drills, replica_labels), view.disagreements.counts),
                of_sources(by_source, _remembered(by_source, view.now())),
                self._own(view.sources),
            )

    def written(self, *, openmetrics: bool) -> bytes:
        """Return what `collect` returns, as text."""
        view, pieces = self._view, self._pieces[openmetrics]
        with view.lock:
            replicas, sources = pieces.of_replicas(view), pieces.of_sources(view)
            own = bodies(self._own(view.sources), openmetrics=openmetrics)
        return joined(self._heads[openmetrics], in_order(replicas, sources, own))

    def _own(self, sources: Iterable[Source]) -> list[Metric]:
        return of_the_sidecar(sources, self._view.problems, fail_fast=self._fail_fast, version=self._version)


class _Pieces:
    """The pieces in one of the two formats, by the labels of whose they are."""

    def __init__(self, *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._kept: dict[LabelValues, tuple[State, list[str]]] = {}
        self._no_replica = self._written(of_replicas({}, {}, {}))
        self._no_source = self._written(of_sources({}, {}))

    def of_replicas(self, view: JournalView) -> list[str]:
        """Return the lines of each family that has a series for each replica."""
        counts = view.disagreements.counts
        by_replica, drills = grouped(view.sources, replica_labels), grouped(view.drills, replica_labels)
        pieces = [self._no_replica]
        for labels in sorted({*by_replica, *drills}):
            sources, planted = _only(labels, by_replica), _only(labels, drills)
            state = (_state(sources), _state(planted), counts.get(labels, 0))
            piece = self._find(labels, state)
            pieces.append(piece or self._keep(labels, state, of_replicas(sources, planted, counts)))
        return _by_family(pieces)

    def of_sources(self, view: JournalView) -> list[str]:
        """Return the lines of each family that has series for each source."""
        pieces, now = [self._no_source], view.now()
        for labels, sources in grouped(view.sources, source_labels).items():
            group = {labels: sources}
            remembered = _remembered(group, now)
            state = (_state(group), _state(remembered))
            piece = self._find(labels, state)
            pieces.append(piece or self._keep(labels, state, of_sources(group, remembered)))
        return _by_family(pieces)

    def _find(self, labels: LabelValues, state: State) -> list[str] | None:
        kept_state, piece = self._kept.get(labels, (None, None))
        return piece if kept_state == state else None

    def _keep(self, labels: LabelValues, state: State, families: Sequence[Metric]) -> list[str]:
        piece = self._written(families)
        self._kept[labels] = (state, piece)
        return piece

    def _written(self, families: Sequence[Metric]) -> list[str]:
        return bodies(families, openmetrics=self._openmetrics)


def _only(labels: LabelValues, groups: Groups) -> Groups:
    return {labels: groups[labels]} if labels in groups else {}


def _remembered(groups: Groups, now: float) -> Groups:
    """Leave out sources that have been dead for long: their info, active and last-step series are gone."""
    alive = {
        labels: [source for source in sources if source.dead_seconds(now) <= FORGET_DEAD_AFTER_SECONDS]
        for labels, sources in groups.items()
    }
    return {labels: sources for labels, sources in alive.items() if sources}


def _state(groups: Groups) -> State:
    return tuple((source.file, source.changes) for sources in groups.values() for source in sources)


def _by_family(pieces: Iterable[Sequence[str]]) -> list[str]:
    """Join pieces [P, F] to texts [F]: [[a1, b1], [a2, b2]] -> [a1 + a2, b1 + b2]."""
    return list(map("".join, zip(*pieces, strict=True)))
