"""A probe for tests: it counts at once, in the caller's thread, and keeps what it found in memory.

    R = logits rows of a step
It stands where a NanProbe would, for the adapters that show it their rows: same arguments, but it
waits for the counts, which a test may.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from nanwatch.attribution import Layout
from nanwatch.counting import count_nans_per_row
from nanwatch.observation import Observation

from .findings import Findings

_NOTHING = Observation(None, None)


class CheckingProbe:
    """Finds NaN in the logits of what runs now.

    Args:
        findings: returns where to put it.
        where: the class of the module whose logits these are.
        phased: whether who shows the logits knows phases.
    """

    def __init__(self, findings: Callable[[], Findings], where: str, *, phased: bool) -> None:
        self._findings, self._where, self._phased = findings, where, phased

    def observe(self, logits: Tensor | None, request_ids: Sequence[str] | None, **layout: Any) -> Observation:
        """Count the NaNs in the raw logits [..., V] of one step, as NanProbe.observe does.

        Raises:
            ValueError, TypeError: the arguments do not fit together.
        """
        counts = None if logits is None else count_nans_per_row(logits)
        return self.observe_counts(counts, request_ids, **layout)

    def observe_counts(
        self,
        counts: Tensor | None,
        request_ids: Sequence[str] | None,
        *,
        row_ends: Any = None,
        row_owner: Any = None,
        phase: str | Sequence[str] = "decode",
    ) -> Observation:
        """Take counts [R] that were made elsewhere; raises as `observe` does."""
        if counts is not None:
            values: list[int] = counts.reshape(-1).tolist()
            ends, owner = _on_host(row_ends), _on_host(row_owner)
            layout = Layout(len(values), request_ids, row_ends=ends, row_owner=owner, phase=phase)
            self._findings().take(values, layout, self._where, phased=self._phased)
        return _NOTHING

    def finish(self, request_ids: Iterable[str]) -> None:
        """Do nothing: what was found is the test's."""

    def drop(self, reason: str) -> None:
        """Do nothing: the log says what could not be looked at."""

    def close(self, timeout: float = 0.0) -> None:
        """Do nothing: there is no file and no thread."""


def _on_host(rows: Any) -> list[int] | None:
    return rows.reshape(-1).tolist() if isinstance(rows, Tensor) else None if rows is None else list(rows)
