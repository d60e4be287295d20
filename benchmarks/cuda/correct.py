"""(a) Every number against eager torch: random logits, planted NaN and infinities, outputs poisoned before.

R rows, V columns; each in three layouts: contiguous, inside wider rows (unaligned), every other row
"""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from nanwatch import count_nans_per_row, inspect_rows
from nanwatch.findings import PLANES
from nanwatch.inspection import inspect_eagerly

if TYPE_CHECKING:
    from nanwatch.row_kernel import RowKernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
ROWS = (1, 2, 7, 32, 256, 1024, 4096)
COLUMNS = (1000, 32_000, 128_256, 151_936, 262_144)
SMALL_ROWS, SMALL_COLUMNS = (1, 2, 7), (1, 31, 1000, 4097, 9000)  # for the interpreter
POISON = 0x5A5A5A5A
_MARGIN = 24


class Outcome(NamedTuple):
    """How many cases were looked at, and those that were wrong."""

    cases: int
    wrong: list[str]


def check(
    kernel: "RowKernel | None",
    device: torch.device,
    rows: tuple[int, ...] = ROWS,
    columns: tuple[int, ...] = COLUMNS,
) -> Outcome:
    """Look at every dtype, size and layout."""
    cases, wrong = 0, []
    for dtype, count, width in itertools.product(DTYPES, rows, columns):
        for layout, logits in _layouts(count, width, dtype, device):
            cases += 1
            if not _is_right(kernel, logits):
                wrong.append(f"{dtype} [{count}, {width}] {layout}")
    return Outcome(cases, wrong)


def _layouts(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    wide = _planted(rows, columns + _MARGIN, dtype, device)
    yield "contiguous", wide.view(-1)[: rows * columns].view(rows, columns)
    yield "inside wider rows", wide[:, 3 : 3 + columns]
    yield "every other row", wide[::2, :columns]


def _planted(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make random logits [R, V]; about a third of the rows get NaN, as many +inf, every fifth is masked."""
    logits = torch.empty(rows, columns, dtype=torch.float16 if dtype.itemsize < 4 else dtype, device=device)  # noqa: PLR2004
    logits.normal_()
    for value in (math.nan, math.inf):
        at = torch.randint(rows, (1 + rows // 3, 1), device=device)
        logits[at, torch.randint(columns, (1 + rows // 3, 4), device=device)] = value
    logits[2::5] = -math.inf
    return logits.to(dtype)


def _is_right(kernel: "RowKernel | None", logits: Tensor) -> bool:
    expected = inspect_eagerly(logits)
    found = inspect_rows(logits)
    right = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    right &= torch.equal(count_nans_per_row(logits), expected.nan)
    if kernel is None:
        return right
    return right and all(torch.equal(a, b) for a, b in zip(_by_kernel(kernel, logits), expected, strict=True))


def _by_kernel(kernel: "RowKernel", logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = kernel.rows_of(logits)
    assert rows is not None  # noqa: S101  every layout above is one that it takes
    shape = kernel.shape_for(rows)
    cells = torch.full((shape.cells,), POISON, dtype=torch.int32, device=logits.device)
    kernel.launch(rows, cells, shape)
    planes = cells.view(PLANES, shape.rows, shape.parts).sum(-1, dtype=torch.int32)
    return planes[0], planes[1], planes[2] == shape.parts
