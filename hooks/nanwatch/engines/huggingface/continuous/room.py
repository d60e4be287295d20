"""Where the counts of one step are put as they are made.

R = rows of a step, M = places in the engine's buffer of tokens, at least R
on a CPU    the row of the buffer: it is host memory
on a GPU    the row of the buffer, which the engine copies with its tokens; and pinned host memory, which
            holds them even if the device dies of the NaN while it samples. Both copies are captured.
"""

import math

import torch
from torch import Tensor

from nanwatch.counting import count_nans_per_row
from nanwatch.readback import NOT_LANDED


class Room:
    """The places for the counts of the steps that are launched from one of the engine's buffers.

    Attributes:
        row: [M] int32, the buffer's.
        is_clean: whether the step held no NaN, as far as is known without a look at the row: on a CPU.
    """

    def __init__(self, row: Tensor) -> None:
        self.row = row
        self.is_clean = False
        self._pinned = None if row.is_cpu else _host_memory_for(row)
        self._is_made = False  # on a CPU: whether this step's counts are in the row
        self._is_zero = False  # on a CPU: whether the row holds no count at all

    def empty(self, rows: int) -> None:
        """Forget what landed in the first `rows` places; the last step that used them was read."""
        if not self._is_made:  # a compiled step counts past this object: its row may hold anything
            self._is_zero = False
        self._is_made = self.is_clean = False
        if self._pinned is not None:
            self._pinned[:rows] = NOT_LANDED

    def count(self, logits: Tensor) -> None:
        """Count the NaNs of logits [1, R, V] into these places; the host waits for no device."""
        if self._pinned is not None:
            counts = count_nans_per_row(logits[0])
            self.row[: len(counts)].copy_(counts)
            self._pinned[: len(counts)].copy_(counts, non_blocking=True)
            return
        if math.isnan(logits.sum().item()):
            counts = count_nans_per_row(logits[0])
            self.row[: len(counts)] = counts
            self._is_zero = False
        elif not self._is_zero:  # a clean step writes only where the one before it was not
            self.row.zero_()
            self._is_zero = True
        self._is_made, self.is_clean = True, self._is_zero

    def landed(self, rows: int) -> Tensor | None:
        """Return the counts [R] in host memory, None if one of them is not there; never waits."""
        if self._pinned is None:
            return self.row[:rows] if self._is_made else None
        counts = self._pinned[:rows]
        return None if NOT_LANDED in counts.tolist() else counts


def with_one_more_row(buffer: Tensor) -> Tensor:
    """Return a buffer as this one [N, M], of [N + 1, M] zeros."""
    with torch.inference_mode(mode=False):  # what was made in inference mode cannot be written outside of it
        return torch.zeros(
            (buffer.shape[0] + 1, *buffer.shape[1:]),
            dtype=buffer.dtype,
            device=buffer.device,
            pin_memory=buffer.is_pinned(),
        )


def _host_memory_for(row: Tensor) -> Tensor:
    with torch.inference_mode(mode=False):  # what was made in inference mode cannot be written outside of it
        return torch.full_like(row, NOT_LANDED, device="cpu", pin_memory=row.is_cuda)
