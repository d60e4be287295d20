"""How many NaNs each logits row holds: the one number that all else is made of.

Called on the engine's thread at every step, so a clean step has to cost next to nothing.

On the CPU a mask of all logits costs tens of times what reading them costs. But NaN plus anything is NaN:
one sum per row, the screen, tells which rows can hold a NaN, and only those suspects are counted.
A screen cannot miss a NaN. It can raise a false alarm (+inf and -inf in one row sum to NaN as well),
which costs time and never a wrong number, since every suspect is counted exactly.
The suspects are counted in blocks, so that a step of nothing but NaNs stays bounded in memory too.

On any other device nothing may wait for a result, so nothing may look at a screen: all rows are counted,
on a GPU by a kernel of our own (kernels.py).

    R = rows (all dimensions but the last), V = vocabulary, S = suspects, D = dimensions before V
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_VALUES = 1 << 19
"""Logits looked at together when suspects are counted (one row at least): their mask stays in the cache."""

_SUMMABLE = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})

# In these torch tells NaN from number, each by its own bit patterns, but cannot sum. Older torch lacks some.
FLOAT8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)

# Of other types the values are counted whole.
_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})


def count_nans_per_row(logits: Tensor) -> Tensor:
    """Count the NaNs in each row of logits.

    [[0., nan, nan], [inf, -inf, 3.]] -> [2, 0]; infinities are not NaNs.

    Args:
        logits: [..., V] float64, float32, float16, bfloat16 or a float8, with any strides, as the model made
            them: before penalties, masks or nan_to_num. Only read; no autograd graph is built.

    Returns:
        [...] int32 on the device of the logits, 0-d for [V]. The host waits for no device.

    Raises:
        TypeError: the logits are not a tensor of one of these dtypes.
        ValueError: the logits have no dimension.
    """
    check_logits(logits)
    if not logits.is_cpu or not is_plain(logits):
        return _count_elsewhere(logits)
    if logits.requires_grad:
        logits = logits.detach()
    if logits.dtype in FLOAT8:
        return _count_suspects(logits, all_rows(logits))
    screen = logits.sum(-1)
    if math.isnan(screen.sum().item()):
        return _count_suspects(logits, screen.isnan())
    # zeros_like, as torch.zeros would follow torch.set_default_device.
    return torch.zeros_like(screen, dtype=torch.int32)


def is_plain(logits: Tensor) -> bool:
    """Whether indexing these logits means what it says: subclasses may be distributed, fake or nested."""
    return type(logits) in _PLAIN_TYPES


def check_logits(logits: object) -> None:
    """Raise TypeError or ValueError for what has no rows of floats; count_nans_per_row says which."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a tensor, got {type(logits).__name__}")
    if logits.dtype not in _SUMMABLE and logits.dtype not in FLOAT8:
        expected = ", ".join(sorted(str(dtype) for dtype in _SUMMABLE | FLOAT8))
        raise TypeError(f"logits must have one of the dtypes {expected}, got {logits.dtype}")
    if logits.dim() == 0:
        raise ValueError("logits must have the shape [..., V], got a 0-d tensor")


def _count(logits: Tensor) -> Tensor:
    """Count [..., V] -> [...] int32 through a mask of the same shape as the logits."""
    return torch.isnan(logits).sum(-1, dtype=torch.int32)


def _count_elsewhere(logits: Tensor) -> Tensor:
    """Count on a GPU, by the kernel that reads the logits once where it can be had; or anywhere else."""
    from .inspection import kernel_for

    found = kernel_for(logits)
    if found is None:
        return _count(logits)
    kernel, rows = found
    return kernel.inspect(rows)[0].reshape(logits.shape[:-1])


def all_rows(logits: Tensor) -> Tensor:
    """Suspect every row of [..., V]."""
    return torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)


def _count_suspects(logits: Tensor, suspects: Tensor) -> Tensor:
    """Count the rows of [..., V] that `suspects` [...] marks; the others are 0."""
    counts = torch.zeros_like(suspects, dtype=torch.int32)
    for index in blocks_of(logits, suspects):
        counts[index] = _count(logits[index])
    return counts


def blocks_of(logits: Tensor, suspects: Tensor) -> Iterator[tuple[Tensor | int, ...]]:
    """Index the rows of [..., V] that `suspects` [...] marks, a few at a time: their mask stays small."""
    return _blocks(suspects, rows_per_block=max(1, BLOCK_VALUES // max(1, logits.shape[-1])))


def _blocks(suspects: Tensor, rows_per_block: int) -> Iterator[tuple[Tensor | int, ...]]:
    """Index the marked rows, a few at a time.

    suspects=[[1,0],[1,1]], rows_per_block=2 -> ([0,1],[0,0]) and then (1,1): an index tensor for each
    dimension of `suspects`, as flattening oddly strided logits to [R, V] would copy them all; integers for
    a row that is alone, which is looked at where it lies, without a copy. The one row of a [V] has the
    index ().
    """
    positions = suspects.nonzero()  # [S, D]
    for start in range(0, len(positions), rows_per_block):
        block = positions[start : start + rows_per_block]
        yield tuple(block[0].tolist()) if len(block) == 1 else block.unbind(-1)
