"""inspect_rows says which rows hold NaN, +inf, or nothing but -inf; on the CPU at the price of one sum."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from nanwatch import RowCounts, inspect_rows
from nanwatch.counting import FLOAT8
from nanwatch.inspection import inspect_eagerly, inspect_on_cpu
from tests.hooks.test_counting import LAYOUTS, WIDE, any_logits, recorded

INF, NAN = math.inf, math.nan

# row, NaNs, +inf, fully masked
ROWS = [
    ([0.0] * 8, 0, 0, False),
    ([-INF] * 8, 0, 0, True),
    ([-INF] * 7 + [1.0], 0, 0, False),
    ([1.0] + [-INF] * 7, 0, 0, False),
    ([-INF, 1.0, *[-INF] * 6], 0, 0, False),
    ([INF, *[0.0] * 7], 0, 1, False),
    ([INF] * 8, 0, 8, False),
    ([INF, -INF] * 4, 0, 4, False),
    ([NAN, INF, -INF, NAN, NAN, 0.0, 1.0, 2.0], 3, 1, False),
    ([NAN, *[-INF] * 7], 1, 0, False),
    ([-NAN] * 8, 8, 0, False),
]


def found(counts: RowCounts) -> list[tuple[int, int, bool]]:
    assert counts.nan.dtype == counts.posinf.dtype == torch.int32
    assert counts.fully_masked.dtype == torch.bool
    return list(zip(*(plane.reshape(-1).tolist() for plane in counts), strict=True))


def said_in_python(logits: Tensor) -> list[tuple[int, int, bool]]:
    rows = logits.reshape(-1, logits.shape[-1]).tolist() if logits.numel() else []
    rows = rows or [[]] * math.prod(logits.shape[:-1])
    return [
        (sum(map(math.isnan, row)), row.count(INF), bool(row) and all(value == -INF for value in row))
        for row in rows
    ]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize(("row", "nans", "posinf", "masked"), ROWS)
def test_each_kind_of_row_is_told_apart(
    row: list[float], nans: int, posinf: int, dtype: torch.dtype, *, masked: bool
) -> None:
    expected = (nans, posinf, masked)
    alone = torch.tensor(row, dtype=dtype)
    among = torch.tensor([[0.0] * 8, row, [1.0] * 8, row], dtype=dtype)
    for look in (inspect_rows, inspect_eagerly):
        assert found(look(alone)) == [expected]
        assert found(look(among)) == [(0, 0, False), expected, (0, 0, False), expected]


@settings(max_examples=300, deadline=None)
@given(logits=any_logits())
def test_any_logits_in_any_layout_are_what_plain_python_says(logits: Tensor) -> None:
    counts = inspect_rows(logits)
    assert counts.nan.shape == counts.posinf.shape == counts.fully_masked.shape == logits.shape[:-1]
    assert found(counts) == said_in_python(logits)
    assert found(inspect_eagerly(logits)) == said_in_python(logits)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("dtype", sorted(FLOAT8, key=str), ids=str)
def test_float8_is_told_apart_by_what_it_can_hold(dtype: torch.dtype, layout: object) -> None:
    patterns = torch.arange(256).to(torch.uint8).view(dtype)
    infinite = {"torch.float8_e5m2": 1}.get(str(dtype), 0)
    nans = {"torch.float8_e5m2": 6, "torch.float8_e4m3fn": 2}.get(str(dtype), 1)
    assert found(inspect_rows(patterns.expand(2, 256))) == [(nans, infinite, False)] * 2


@pytest.mark.parametrize("value", [1.0, 1000.0, 60000.0])
def test_float16_rows_whose_sum_overflows_hold_nothing(value: float) -> None:
    logits = torch.full((3, 4096), value, dtype=torch.float16)
    assert found(inspect_rows(logits)) == [(0, 0, False)] * 3
    assert found(inspect_rows(-logits)) == [(0, 0, False)] * 3
    assert inspect_on_cpu(logits) is inspect_on_cpu(-logits) is None  # as any clean step: nothing is built
    logits[1, 7] = INF
    assert found(inspect_rows(logits)) == [(0, 0, False), (0, 1, False), (0, 0, False)]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_a_clean_step_costs_two_sums_and_one_look(dtype: torch.dtype) -> None:
    logits = torch.ones(4, 32, dtype=dtype)
    assert inspect_on_cpu(logits) is None
    operations = recorded(logits, inspect_on_cpu).operations
    assert operations == ["detach", "sum", "sum", "_local_scalar_dense"]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_rows_that_are_masked_but_for_one_value_are_not_read_again(dtype: torch.dtype) -> None:
    logits = torch.full((64, 4096), -INF, dtype=dtype)
    logits[:, 0] = 1.0
    assert max(recorded(logits, inspect_on_cpu).allocated_bytes) <= 64 * 8


@pytest.mark.parametrize("inside", [True, False], ids=["inside inference mode", "after inference mode"])
def test_inference_tensors_and_parameters_are_looked_at(*, inside: bool) -> None:
    with torch.inference_mode():
        logits = torch.full((2, 8), NAN)
    with torch.inference_mode(mode=inside):
        assert found(inspect_rows(logits)) == [(8, 0, False)] * 2
    weight = torch.nn.Parameter(torch.full((2, 8), INF))
    assert found(inspect_rows(weight)) == [(0, 8, False)] * 2


def test_what_has_no_rows_of_floats_is_refused_as_for_counting() -> None:
    with pytest.raises(TypeError, match="one of the dtypes"):
        inspect_rows(torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="0-d tensor"):
        inspect_rows(torch.tensor(0.0))
