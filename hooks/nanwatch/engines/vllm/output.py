"""A step from its raw logits to its output: what was observed in it, and where it may raise.

    execute_model   refuse after a trip; tell the probe what finished
    sample_tokens   begin, observe(logits), [the original], deliver(output)

`deliver` is the one place that has a step's output and the counts of its requests side by side.
A raise is allowed there and not before: the runner has gone through its step and is in a defined
state. Where the output is still on its way (get_output), it is raised when it is asked for.

After a raise the engine refuses to go on. In the same process the scheduler still holds the
requests that were in flight; the next generate() would hang on them, or return them as its own.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nanwatch.counting import count_nans_per_row
from nanwatch.engines.guard import Guard
from nanwatch.failfast import NanLogitsError
from nanwatch.observation import Observation
from nanwatch.probe import NanProbe
from nanwatch.stop import raise_if_corrupted

from .client_ids import client_id
from .replaced import replace
from .rows import Rows, Span, is_warm_up

_REFUSAL = (
    "; this engine stopped at it in an earlier step (NANWATCH_FAIL_FAST): what was in flight is lost, "
    "make a new engine"
)


Report = Callable[[Sequence[Observation], Any], Any]  # (a step, its output) -> the output


class Outlet:
    """Hands the steps of one worker to its probe, and their outputs to vLLM.

    `report`, if it is given, is told of each step once its output is there, and returns the output.
    """

    def __init__(
        self,
        probe: NanProbe,
        guard: Guard,
        *,
        output_is_asked_for: bool = True,
        report: Report | None = None,
    ) -> None:
        self._probe, self._guard, self._report = probe, guard, report
        self._asked_for = output_is_asked_for
        self._step: list[Observation] = []
        self._tripped: NanLogitsError | None = None

    def before(self, scheduler_output: Any) -> None:
        """Refuse after a trip; tell which requests ended since the step before, whether done or aborted.

        Raises:
            NanLogitsError: what was raised before, if it was.
        """
        self._refuse_after_a_trip()
        self._guard.run(self._finish, scheduler_output)

    def begin(self) -> None:
        """Begin a step."""
        self._step = []

    def observe(self, logits: Tensor | None, rows: Rows) -> None:
        """Look at raw logits [R, V]; vLLM's own warm-up is not a step."""
        if logits is not None and not is_warm_up(rows.request_ids):
            self._step.append(
                self._probe.observe(
                    logits,
                    rows.request_ids,
                    row_ends=rows.row_ends,
                    row_owner=rows.row_owner,
                    phase=rows.phase,
                )
            )

    def observe_prompt(self, logits: Tensor, pieces: Sequence[Span]) -> None:
        """Look at prompt logits [R, V]; rows in no piece were made for nobody."""
        ids = [piece.request_id for piece in pieces]
        if not ids or is_warm_up(ids):
            return
        counts = count_nans_per_row(logits)
        counts = torch.cat([counts[piece.start : piece.end] for piece in pieces])
        ends = list(accumulate(piece.end - piece.start for piece in pieces))
        self._observe_counts(counts, Rows(ids, row_ends=ends, phase="prompt"))

    def observe_pooled(self, request_ids: Sequence[str], pooled: Sequence[Any]) -> None:
        """Look at pooled outputs, one row for each that is there: [D], or [T, D] taken as one row."""
        there = [(name, row) for name, row in zip(request_ids, pooled, strict=True) if _has_floats(row)]
        ids = [name for name, _ in there]
        if not ids or is_warm_up(ids):
            return
        counts = torch.stack([count_nans_per_row(row.reshape(-1)) for _, row in there])
        self._observe_counts(counts, Rows(ids, phase="prefill"))

    def deliver(self, output: Any) -> Any:
        """Return the output of a step that was sampled, or raise for it.

        Raises:
            NanLogitsError: under fail-fast, a request of the step is corrupted.
        """
        step, self._step = self._step, []
        report = self._report
        if report is not None:
            return self._when_there(output, lambda there: report(step, there))
        if not self._probe.fail_fast:
            return output
        return self._when_there(output, lambda there: self._checked(step, there))

    def deliver_pooled(self, output: Any) -> Any:
        """Look at the pooled outputs of a step once they are on the host, then do as `deliver`."""
        return self._when_there(output, self._pooled)

    def _refuse_after_a_trip(self) -> None:
        if self._tripped is not None:
            raise NanLogitsError(self._tripped.requests, _REFUSAL)

    def _finish(self, scheduler_output: Any) -> None:
        ended = scheduler_output.finished_req_ids
        if ended:
            self._probe.finish(ended)

    def _when_there(self, output: Any, action: Callable[[Any], Any]) -> Any:
        """Do it now, or when vLLM asks for an output that is still on its way."""
        if not hasattr(output, "get_output") or not self._asked_for:
            return action(output)
        self._guard.run(replace, output, "get_output", lambda original: action(original()))
        return output

    def _pooled(self, output: Any) -> Any:
        self.begin()
        if getattr(output, "pooler_output", None) is not None:
            self._guard.run(self.observe_pooled, output.req_ids, output.pooler_output)
        return self.deliver(output)

    def _checked(self, step: Sequence[Observation], output: Any) -> Any:
        self._refuse_after_a_trip()
        try:
            for observation in step:
                self._guard.run(raise_if_corrupted, observation)
        except NanLogitsError as error:
            self._tripped = by_client_id(error)
            raise self._tripped from None
        return output

    def _observe_counts(self, counts: Tensor, rows: Rows) -> None:
        self._step.append(
            self._probe.observe_counts(counts, rows.request_ids, row_ends=rows.row_ends, phase=rows.phase)
        )


def by_client_id(error: NanLogitsError) -> NanLogitsError:
    """Name the requests as their clients do; the children of one request (n > 1) are added up."""
    found: dict[str, int] = {}
    for name, values in error.requests.items():
        shown = client_id(name)
        found[shown] = found.get(shown, 0) + values
    return NanLogitsError(found, error.note)


def _has_floats(row: Any) -> bool:
    return isinstance(row, Tensor) and row.is_floating_point()
