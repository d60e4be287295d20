"""Logits in which NaN, +inf and -inf were planted, so that what each row holds is known beforehand.

[(NaNs, +inf, fully masked)] one for each row
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nanwatch.row_kernel import RowKernel

Expected = list[tuple[int, int, bool]]
Planted = Callable[[int, int, torch.dtype], tuple[Tensor, Expected]]

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
POISON = 0x5A5A5A5A


def planted(
    rows: int, columns: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0
) -> tuple[Tensor, Expected]:
    """Return random logits [R, V]: in turn a clean row, NaNs, +inf, both, -inf throughout, and all but one.

    E4M3FN knows no infinity; there NaN alone is planted.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, columns, generator=generator)
    expected: Expected = []
    for row in range(rows):
        places = torch.randperm(columns, generator=generator)[: 1 + row % 5].tolist()
        expected.append(_plant(logits[row], places, row % 6, infinite=dtype != torch.float8_e4m3fn))
    return logits.to(device).to(dtype), expected


def _plant(row: Tensor, places: list[int], kind: int, *, infinite: bool) -> tuple[int, int, bool]:
    nans, posinf, masked = 0, 0, False
    if kind in {1, 3} or (kind and not infinite):
        row[places] = float("nan")
        nans = len(places)
    elif kind == 2:
        row[places] = float("inf")
        posinf = len(places)
    elif kind in {4, 5}:
        row[:] = float("-inf")
        masked = kind == 4
        row[places[0]] = float("-inf") if masked else 1.0
    if kind == 3 and infinite and len(places) > 1:
        row[places[0]] = float("inf")
        nans, posinf = nans - 1, 1
    return nans, posinf, masked


def every_other_row(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Expected]:
    logits, expected = planted(2 * rows, columns, dtype)
    return logits[::2], expected[::2]


def inside_wider_rows(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Expected]:
    """Rows that begin at no multiple of 16 bytes, between columns of NaN."""
    logits, expected = planted(rows, columns, dtype)
    wide = torch.full((rows, columns + 8), float("nan")).to(dtype)
    wide[:, 3:-5] = logits
    return wide[:, 3:-5], expected


def one_row_many_times(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Expected]:
    logits, expected = planted(2, columns, dtype)
    return logits[1].expand(rows, columns), expected[1:] * rows


def two_dimensions_of_rows(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Expected]:
    logits, expected = planted(2 * rows, columns, dtype)
    return logits.view(2, rows, columns), expected


def a_slice_of_two_dimensions(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Expected]:
    logits, expected = planted(3 * rows, columns, dtype)
    return logits.view(rows, 3, columns)[:, 1], expected[1::3]


PLANTED: list[Planted] = [
    every_other_row,
    inside_wider_rows,
    one_row_many_times,
    two_dimensions_of_rows,
    a_slice_of_two_dimensions,
]


def found_by(kernel: "RowKernel", logits: Tensor) -> Expected:
    """Let the kernel write its cells over poison, and add them up."""
    rows = kernel.rows_of(logits)
    assert rows is not None
    shape = kernel.shape_for(rows)
    cells = torch.full((shape.cells + 16,), POISON, dtype=torch.int32, device=logits.device)
    kernel.launch(rows, cells, shape)
    assert cells[shape.cells :].eq(POISON).all()
    nans, posinf, masked = cells[: shape.cells].cpu().view(3, shape.rows, shape.parts)
    whole = masked.sum(-1) == shape.parts
    return list(zip(nans.sum(-1).tolist(), posinf.sum(-1).tolist(), whole.tolist(), strict=True))
