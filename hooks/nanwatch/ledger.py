"""What one life of a source has counted: steps and finishes in, totals and corrupted requests out.

Pure: it knows neither threads nor files. One thread calls it, the recorder's.
"""

from dataclasses import dataclass, field

from .attribution import Charges, Layout
from .backlog import CleanSteps
from .journal.line import CorruptedRequest
from .journal.totals import Totals
from .lifetimes import Lifetimes, Sighting
from .observation import Step
from .watcher import Contained, Landed, Told


@dataclass(slots=True)
class Changes:
    """Corrupted requests that one item made new, or changed."""

    new: list[CorruptedRequest] = field(default_factory=list)
    known: list[CorruptedRequest] = field(default_factory=list)


class Ledger:
    """Totals and lifetimes of one life, from zero."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.totals = Totals()
        self.last_step_seconds = 0.0  # wall clock, 0 before the first step
        self._lifetimes = lifetimes
        self._step = 0

    def take(self, item: Landed | Told | CleanSteps, boot_ns: int) -> Changes:
        """Fold one item; `boot_ns` is the boot time now."""
        if isinstance(item, CleanSteps):
            self._count_steps(item.layout, item.wall_seconds, item.steps)
            return Changes()
        if isinstance(item, Landed):
            return self._take_step(item.step, item.charges, boot_ns)
        if isinstance(item, Contained):
            self._count_contained(item)
            return Changes()
        return Changes(known=self._lifetimes.finish(item.request_ids))

    def count_dropped(self, reason: str, steps: int = 1) -> None:
        """Count steps that nobody looked at."""
        self.totals.dropped_steps[reason] = self.totals.dropped_steps.get(reason, 0) + steps

    def _count_contained(self, contained: Contained) -> None:
        for cell, by in contained.cells:
            setattr(self.totals, cell, getattr(self.totals, cell) + by)

    def _take_step(self, step: Step, charges: Charges | None, boot_ns: int) -> Changes:
        if step.dropped is not None:
            self._see(step.layout, steps=1)
            self.count_dropped(step.dropped)
            return Changes()
        self._count_steps(step.layout, step.wall_seconds, steps=1)
        self.totals.posinf_rows += step.layout.owned_among(step.posinf)
        self.totals.fully_masked_rows += step.layout.owned_among(step.masked)
        if charges is None:
            return Changes()
        self._count_rows(charges)
        return self._charge(step, charges, Sighting(self._step, step.wall_seconds, boot_ns))

    def _count_steps(self, layout: Layout, wall_seconds: float, steps: int) -> None:
        self._see(layout, steps)
        self.totals.steps += steps
        self.totals.rows += steps * layout.owned_rows()
        self.last_step_seconds = wall_seconds

    def _see(self, layout: Layout, steps: int) -> None:
        self._step += steps
        if layout.request_ids:
            self.totals.requests += self._lifetimes.see(layout.request_ids, self._step)

    def _count_rows(self, charges: Charges) -> None:
        self.totals.nan_rows += charges.nan_rows
        self.totals.nan_values += charges.nan_values
        self.totals.padding_nan_rows += charges.padding_nan_rows
        self.totals.unattributed_nan_rows += charges.unattributed_nan_rows

    def _charge(self, step: Step, charges: Charges, seen: Sighting) -> Changes:
        changes = Changes()
        for charge in charges.requests:
            request_id = (step.layout.request_ids or ())[charge.request]
            known = self._lifetimes.is_corrupted(request_id)
            phase = step.layout.phase_of(charge.request)
            request = self._lifetimes.charge(request_id, seen, phase, charge.rows, charge.values)
            (changes.known if known else changes.new).append(request)
        self.totals.corrupted_requests += len(changes.new)
        return changes
