"""One step that was observed: what its thread handed over, and what may be asked of it."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Protocol, Self

from .attribution import Layout, attribute, charges_to_dict
from .failfast import raise_if_nan_logits
from .findings import CLEAN, add_up, counts_of, is_clean
from .readback import Counts

_POLL_SECONDS = 0.0002

logger = logging.getLogger("nanwatch")


@dataclass(slots=True)
class Step:
    """One step on its way: the engine's thread makes it, the watcher reads it, the recorder folds it."""

    layout: Layout
    observed_ns: int  # monotonic
    wall_seconds: float
    pending: Counts | None  # NaNs per row on their way; None once taken, made here, or without a place
    owners: Counts | None = None  # request index + 1 per row, where only the device knows
    dropped: str | None = None  # why nobody looks at it
    ticket: int = 0  # its place in the order of observe and finish
    counts: bytes | None = None  # NaNs per row [R] int32, once landed
    posinf: bytes = CLEAN  # +inf per row [R] int32
    masked: bytes = CLEAN  # 1 for each row of nothing but -inf [R] int32

    @classmethod
    def now(cls, layout: Layout, *, counts: bytes | None = None, dropped: str | None = None) -> Self:
        """Begin a step that is observed now; its layout was checked before."""
        return cls(layout, time.monotonic_ns(), time.time(), None, counts=counts, dropped=dropped)

    @property
    def found_nothing(self) -> bool:
        """Whether somebody looked at this step, and saw neither NaN nor anything else that is counted."""
        if self.dropped is not None or self.counts is None:
            return False
        return is_clean(self.counts) and is_clean(self.posinf) and is_clean(self.masked)

    def land(self, lock: Lock) -> bool:
        """Take the counts if they are there. The watcher and a waiting caller may both ask."""
        if self.pending is None:
            return True
        with lock:
            return self._land()

    def _land(self) -> bool:
        if self.pending is None:
            return True
        if not self.pending.landed() or not (self.owners is None or self.owners.landed()):
            return False
        if self.owners is not None:
            self._take_owners(self.owners)
            self.owners = None
        shape = self.pending.shape  # before it is given back: the engine's thread uses slots again at once
        self.counts, self.posinf, self.masked = add_up(self.pending.take(), shape)
        self.pending = None
        return True

    def lose(self) -> None:
        """Give up on counts that did not come; their slots are used again once they have come after all."""
        for copy in (self.pending, self.owners):
            if copy is not None:
                copy.abandon()
        self.dropped, self.pending, self.owners = "lost", None, None

    def wait_for_device(self) -> None:
        """Sleep until the device is through with the counts, where it can tell; raises what it raises."""
        pending = self.pending  # read once: the watcher may take it at any moment
        if pending is not None:
            pending.wait()

    def _take_owners(self, owners: Counts) -> None:
        layout = replace(self.layout, row_owner=[owner - 1 for owner in counts_of(owners.take())])
        try:
            layout.check()
        except ValueError:
            logger.exception(
                "the engine's row owners do not fit its requests; these rows count as unattributed"
            )
            layout = Layout(layout.rows, None)
        self.layout = layout


class Written(Protocol):
    """What an observation needs of its probe."""

    @property
    def landing(self) -> Lock:
        """Held while the counts of a step are taken."""
        ...

    def wait_until_written(self, ticket: int, timeout: float) -> bool:
        """Wait until a journal line holds everything up to `ticket`."""
        ...


class Observation:
    """What `observe` returns: ask for the result when, and if, it is wanted."""

    __slots__ = ("_fail_fast", "_probe", "_step")

    def __init__(self, step: Step | None, probe: Written | None, *, fail_fast: bool = False) -> None:
        self._step, self._probe, self._fail_fast = step, probe, fail_fast

    @property
    def ticket(self) -> int:
        """The place of the step in the order of observe and finish, 0 where there is no step."""
        return self._step.ticket if self._step is not None else 0

    @property
    def dropped(self) -> str | None:
        """Why nobody looked at this step, None where somebody did."""
        return self._step.dropped if self._step is not None else None

    def done(self) -> bool:
        """Whether the counts are there; never waits."""
        return self._step is None or self._probe is None or self._step.land(self._probe.landing)

    def result(self, timeout: float = 5.0) -> dict[str, int]:
        """Wait for the NaN values of each request; {} for a step that nobody looked at.

        Where a request is corrupted this also waits for its line in the journal, so that what
        was returned survives the death of the process.

        Raises:
            TimeoutError: the counts or the line did not come within `timeout` seconds; the step
                stays pending and may be asked again.
            NanLogitsError: under fail-fast, a request is corrupted.
        """
        deadline = time.monotonic() + timeout
        found = self.counts_by_request(timeout)
        if any(found.values()):
            self._wait_until_written(deadline, timeout)
            if self._fail_fast:
                raise_if_nan_logits(found)
        return found

    def written_within(self, timeout: float) -> bool:
        """Wait for the step's line in the journal; False: `timeout` seconds were not enough."""
        return self._probe is None or self._probe.wait_until_written(self.ticket, timeout)

    def counts_by_request(self, timeout: float) -> dict[str, int]:
        """Wait for the counts alone, not for the journal.

        Raises:
            TimeoutError: they did not land within `timeout` seconds.
        """
        step = self._step
        if step is None:
            return {}
        self._wait_until_landed(timeout)
        if step.dropped is not None or step.counts is None:
            return {}
        ids: Sequence[str] = step.layout.request_ids or ()
        if is_clean(step.counts):
            return dict.fromkeys(ids, 0)
        return charges_to_dict(attribute(counts_of(step.counts), step.layout), ids)

    def wait_for_device(self) -> None:
        """Sleep until the device is through with this step, where there is an event to sleep on; no bound.

        Only for the engine's own thread under fail-fast, which would wait for its device next all the same.
        After a device assert the wait only raises; what landed before is looked at in host memory.
        """
        try:
            if self._step is not None:
                self._step.wait_for_device()
        except Exception as error:  # noqa: BLE001  whatever became of the device
            logger.error("the device failed while its counts were waited for: %s", error)  # noqa: TRY400

    def corrupted(self, timeout: float) -> dict[str, int]:
        """Wait for the counts; return the NaN values of corrupted requests, {} at once for a clean step.

        Raises:
            TimeoutError: they did not land within `timeout` seconds.
        """
        if self.done() and (self._step is None or self._step.counts is None or is_clean(self._step.counts)):
            return {}
        return {name: values for name, values in self.counts_by_request(timeout).items() if values}

    def unattributed_nan_rows(self) -> int:
        """Return how many landed rows with a NaN belong to requests that nobody named."""
        step = self._step
        if step is None or step.counts is None or step.layout.request_ids is not None:
            return 0
        return sum(map(bool, counts_of(step.counts)))

    def _wait_until_landed(self, timeout: float) -> None:
        if not _poll(self.done, timeout) and self._step is not None:
            raise TimeoutError(
                f"the counts of {self._step.layout.rows} rows did not reach the host within {timeout:g} s; "
                "the step is still pending: ask again, or give result(timeout=...) more seconds"
            )

    def _wait_until_written(self, deadline: float, timeout: float) -> None:
        if self._step is None or self._probe is None:
            return
        remaining = max(0.0, deadline - time.monotonic())
        if not self._probe.wait_until_written(self._step.ticket, remaining):
            raise TimeoutError(
                f"a corrupted request was not written to the journal within {timeout:g} s; it is still "
                "in memory: see the log for what the journal says, or give result(timeout=...) more seconds"
            )


def _poll(ready: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
