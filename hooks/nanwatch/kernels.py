"""One read of the logits on a GPU: for each row its NaNs, its +inf, and whether all of it is -inf.

Imported only where Triton is there; on a machine without a GPU, under TRITON_INTERPRET=1, it runs for tests.

A grid of R × S programs: program (r, s) reads part s of row r and writes three cells, each of them 0 or more,
so that they may lie in pinned host memory that says by itself when they are there. Nothing is cleared before,
nothing is added up between programs, and a second launch is not needed. R=8, V=151936 on 132 multiprocessors:
S = 38 parts of 4096, 304 programs; R=256: S = 3; from R=528 on S = 1.

A program keeps, for each lane, the greatest value with NaN above all, and that alone says for nearly
every part that there is nothing to count. Only a part that holds NaN or +inf is read again, and counted.

    logits [R, V], any row stride; cells [3, R, S] int32: NaNs, +inf, 1 if the part is -inf from end to end
"""

import triton
import triton.language as tl


@triton.jit
def as_float32(raw, KIND: tl.constexpr):
    """Return values in which NaN, +inf and -inf are what they were; bf16 compares wrongly in the interpreter.

    Float8 comes as bytes and is told apart by its bits: E4M3FN has NaN 0x7F and no infinity, E5M2 is laid
    out as float16 is. So it needs no instruction that only some GPUs have.
    """
    if KIND == 0:
        value = raw.to(tl.float32)
    elif KIND == 1:
        value = tl.where((raw.to(tl.int32) & 0x7F) == 0x7F, float("nan"), 0.0)
    else:
        size = raw.to(tl.int32) & 0x7F
        infinite = tl.where(raw.to(tl.int32) == 0x7C, float("inf"), float("-inf"))
        value = tl.where(size > 0x7C, float("nan"), tl.where(size == 0x7C, infinite, 0.0))
    return value


@triton.jit(
    do_not_specialize=["row_stride", "columns", "part_columns"],
    do_not_specialize_on_alignment=["logits", "cells"],
)
def inspect_parts(
    logits,
    cells,
    row_stride: tl.int64,
    columns,
    part_columns,
    KIND: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Look at one part of one row. ALIGNED: each row begins at a multiple of 16 bytes."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    first = part * part_columns
    values = tl.minimum(part_columns, columns - first)
    start = logits + row * row_stride + first
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    whole = values // BLOCK * BLOCK

    greatest = tl.full([BLOCK], float("-inf"), tl.float32)
    for done in range(0, whole, BLOCK):
        raw = tl.load(start + done + lanes)
        greatest = tl.maximum(greatest, as_float32(raw, KIND), propagate_nan=tl.PropagateNan.ALL)
    if whole < values:
        raw = tl.load(start + whole + lanes, mask=whole + lanes < values, other=0)
        rest = tl.where(whole + lanes < values, as_float32(raw, KIND), float("-inf"))
        greatest = tl.maximum(greatest, rest, propagate_nan=tl.PropagateNan.ALL)

    finite_or_less = tl.where(greatest == float("-inf"), 0, 1)
    rank = tl.where(greatest != greatest, 3, tl.where(greatest == float("inf"), 2, finite_or_less))
    highest = tl.max(rank, 0)

    nans = 0
    infinities = 0
    if highest >= 2:
        nan_lanes = tl.zeros([BLOCK], tl.int32)
        infinity_lanes = tl.zeros([BLOCK], tl.int32)
        for done in range(0, values, BLOCK):
            raw = tl.load(start + done + lanes, mask=done + lanes < values, other=0)
            value = as_float32(raw, KIND)
            nan_lanes += (value != value).to(tl.int32)
            infinity_lanes += (value == float("inf")).to(tl.int32)
        nans = tl.sum(nan_lanes, 0)
        infinities = tl.sum(infinity_lanes, 0)

    parts = tl.num_programs(1)
    plane = tl.num_programs(0).to(tl.int64) * parts
    cell = cells + row * parts + part
    tl.store(cell, nans)
    tl.store(cell + plane, infinities)
    tl.store(cell + 2 * plane, (highest == 0).to(tl.int32))
