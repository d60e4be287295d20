"""From a step's logits, or its counts, to what its rows hold: at once on the CPU, through a slot elsewhere.

logits on the CPU       looked at here and now; a clean step keeps nothing
logits on a GPU         the kernel writes straight into a pinned slot; without it torch counts, copies after
counts, wherever made   copied
a capturing stream      refused with the reason "capture": what is recorded here would run in every replay,
                        into a slot that belongs to another step by then. Count inside the graph
                        (count_nans_per_row, inspect_rows) and give `observe_counts` the result after a replay
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from .counting import is_plain
from .findings import CLEAN, PLANES, Shape, is_clean
from .inspection import RowCounts, give_up_kernel, inspect_eagerly, inspect_on_cpu, kernel_for, make_kernel
from .observation import Step
from .readback import Counts, SlotPool, bytes_of, pool_on

CAPTURE = "capture"

logger = logging.getLogger("nanwatch")


def capturing_on(device: torch.device) -> bool:
    """Whether this thread's current stream is recording a CUDA graph."""
    if device.type != "cuda":
        return False
    if device.index in {None, torch.cuda.current_device()}:
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):  # each device has a current stream of its own
        return torch.cuda.is_current_stream_capturing()


class Sight:
    """How one probe sees: its slots, made once, and whatever counts on its device."""

    def __init__(
        self,
        *,
        events: bool,
        make_pool: Callable[..., SlotPool] = pool_on,
        capturing: Callable[[torch.device], bool] = capturing_on,
    ) -> None:
        self._events, self._make_pool, self._capturing = events, make_pool, capturing
        self._pool: SlotPool | None = None
        self._said = False

    def prepare(self, device: torch.device) -> None:
        """Make slots and kernel of a GPU before the first step, never in a capture; waits for the device."""
        if device.type != "cuda":
            return
        try:
            if not self._capturing(device):
                self._slots(device)
                make_kernel(device)
        except Exception as error:  # noqa: BLE001  the first step tries again, and says so for itself
            logger.error("nanwatch could not prepare for %s: %s", device, error)  # noqa: TRY400  one line

    def look(self, step: Step, logits: Tensor, owners: Tensor | None) -> None:
        """Begin to look at the rows of logits [..., V]; what is found, or its way here, goes into the step.

        Args:
            step: whose rows they are.
            logits: as the model made them.
            owners: each row's request index [R] where only the device knows, else None.
        """
        if logits.is_cpu and owners is None:
            _keep(step, _at_once(logits))
        elif self._may_begin(step, logits.device, owners):
            self._note(step, self._start(logits))

    def take(self, step: Step, counts: Tensor | RowCounts, owners: Tensor | None) -> None:
        """Begin the way of counts made elsewhere: NaNs [R] int32, or what inspect_rows returned."""
        nans = counts.nan if isinstance(counts, RowCounts) else counts
        if nans.is_cpu and owners is None:
            _keep(step, counts)
        elif self._may_begin(step, nans.device, owners):
            self._note(step, self._send(counts))

    def forget(self) -> None:
        """In a forked child: the slots stayed with the parent."""
        self._pool = None

    def _may_begin(self, step: Step, device: torch.device, owners: Tensor | None) -> bool:
        """Whether the rows may be looked at now; sends their owners ahead."""
        if self._capturing(device):
            step.dropped = CAPTURE
            self._say_once()
            return False
        if owners is None:
            return True
        sent = self._slots(device).send(owners.reshape(-1) + 1)  # + 1: -1 means "not landed"
        if isinstance(sent, str):
            step.dropped = sent
            return False
        step.owners = sent
        return True

    def _start(self, logits: Tensor) -> Counts | str:
        """Let the kernel fill a slot, or torch count and a copy follow."""
        pool = self._slots(logits.device)
        found = kernel_for(logits)
        if found is None:
            return self._send(inspect_eagerly(logits))
        kernel, rows = found
        slot = pool.slot(kernel.shape_for(rows))
        if not isinstance(slot, str):
            try:
                kernel.launch(rows, slot.memory, slot.shape)
            except Exception as error:  # noqa: BLE001  whatever it is, torch's own operations are still there
                pool.put_back_unused(slot)
                give_up_kernel(logits.device, error)
                return self._send(inspect_eagerly(logits))
            slot.sent()
        return slot

    def _send(self, counts: Tensor | RowCounts) -> Counts | str:
        if isinstance(counts, RowCounts):
            cells = torch.stack([plane.reshape(-1).to(torch.int32) for plane in counts])  # [3, R]
            return self._slots(cells.device).send(cells, Shape(cells.shape[1], planes=PLANES))
        return self._slots(counts.device).send(counts)

    def _note(self, step: Step, sent: Counts | str) -> None:
        if not isinstance(sent, str):
            step.pending = sent
            return
        step.dropped = sent
        if step.owners is not None:  # on their way already: their slot is free again when they have come
            step.owners.abandon()
            step.owners = None

    def _slots(self, device: torch.device) -> SlotPool:
        if self._pool is None:
            self._pool = self._make_pool(device, events=self._events)
        return self._pool

    def _say_once(self) -> None:
        if not self._said:
            self._said = True
            logger.warning(
                "a step was not looked at: its stream captures a CUDA graph. Call count_nans_per_row(logits) "
                "inside the graph, and observe_counts(counts, ...) after each replay; more are only counted"
            )


def _at_once(logits: Tensor) -> RowCounts | None:
    """Look at logits on the CPU; None: no row holds a NaN, +inf, or nothing but -inf."""
    return inspect_on_cpu(logits) if is_plain(logits) else inspect_eagerly(logits)


def _keep(step: Step, found: Tensor | RowCounts | None) -> None:
    """Copy what was found on the CPU; a clean step is let go at once, still warm in the cache."""
    if found is None:
        step.counts = CLEAN
    elif isinstance(found, RowCounts):
        step.counts, step.posinf, step.masked = (_bytes(plane.to(torch.int32)) for plane in found)
    else:
        step.counts = _bytes(found)


def _bytes(counts: Tensor) -> bytes:
    flat = counts.dim() == 1 and counts.is_contiguous()  # as nearly always: asking costs less than doing
    found = bytes_of(counts if flat else counts.reshape(-1).contiguous())
    return CLEAN if is_clean(found) else found
