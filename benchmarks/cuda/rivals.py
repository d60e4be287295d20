"""What the kernel is measured against. Imported only where Triton is there.

`nans_by_row` is the design of the engine that leads today, written afresh: one program for each row, which
goes through it in blocks of 8192 and counts. With few rows most of the GPU has nothing to do.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanwatch.kernels import as_float32

ROW_BLOCK = 8192


@triton.jit
def count_row(logits, counts, row_stride: tl.int64, columns, BLOCK: tl.constexpr):
    """Count the NaNs of row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        raw = tl.load(logits + row * row_stride + at, mask=at < columns, other=0)
        value = as_float32(raw, 0)
        found += (value != value).to(tl.int32)
    tl.store(counts + row, tl.sum(found, 0))


def nans_by_row(logits: Tensor, counts: Tensor) -> None:
    """Count the NaNs of [R, V] into `counts` [R] int32, one program for each row."""
    count_row[(logits.shape[0],)](logits, counts, logits.stride(0), logits.shape[1], BLOCK=ROW_BLOCK)


def eager(logits: Tensor) -> Tensor:
    """Count [R, V] -> [R] as torch does line by line: a mask is written and read again."""
    return torch.isnan(logits).sum(-1, dtype=torch.int32)
