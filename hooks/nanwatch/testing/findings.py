"""What was found in the logits of one test, and how it is told. Pure; no torch.

A step is one tensor of logits that was looked at, counted from 1 in each test. Requests that nobody
named are told by their place: "sample 1" is the second of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanwatch.attribution import Layout, attribute
from nanwatch.engines.made_up_ids import is_made_up

MOST_TOLD = 10


@dataclass(slots=True)
class Finding:
    """One request with NaN in its logits."""

    request: str
    where: str  # the class of the module that gave the logits
    step: int  # of the first NaN
    phase: str  # "" where there are none: a forward by itself
    rows: int = 0
    values: int = 0

    def __str__(self) -> str:
        phase = f" ({self.phase})" if self.phase else ""
        rows = "1 logits row" if self.rows == 1 else f"{self.rows} logits rows"
        return (
            f"{self.request} of {self.where}, first at step {self.step}{phase}: {self.values} NaN in {rows}"
        )


@dataclass(slots=True)
class Findings:
    """All of one test, or of one phase of it."""

    steps: int = 0
    requests: dict[tuple[str, str], Finding] = field(default_factory=dict)  # by (where, request)

    def take(self, counts: Sequence[int], layout: Layout, where: str, *, phased: bool) -> None:
        """Charge the NaN counts [R] of one step to its requests; padding is let go.

        `phased`: whether the layout's phase means something.

        Raises:
            ValueError: the layout does not fit the rows.
        """
        layout.check()
        self.steps += 1
        charges = attribute(counts, layout)
        ids = layout.request_ids or ()
        for charge in charges.requests:
            name = _shown(ids[charge.request], charge.request)
            phase = layout.phase_of(charge.request) if phased else ""
            self._add(name, where, phase, charge.rows, charge.values)
        if charges.unattributed_nan_rows:
            self._add("nobody's rows", where, "", charges.unattributed_nan_rows, charges.nan_values)

    def told(self) -> str:
        """Return a line for each request, the first ones of many; the first line says it all in short."""
        lines = [str(finding) for finding in list(self.requests.values())[:MOST_TOLD]]
        more = len(self.requests) - len(lines)
        return "NaN in the logits of " + "\n".join([*lines, *([f"and of {more} more"] if more else [])])

    def _add(self, name: str, where: str, phase: str, rows: int, values: int) -> None:
        finding = self.requests.setdefault((where, name), Finding(name, where, self.steps, phase))
        finding.rows += rows
        finding.values += values


def _shown(request_id: str, index: int) -> str:
    return f"sample {index}" if is_made_up(request_id) else f"request {request_id!r}"
