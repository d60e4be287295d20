"""The kernel says what each row holds, whatever its dtype, size, strides and parts; in Triton's interpreter.

Nothing here is timed, and nothing says how the compiled kernel behaves on a GPU: tests/kernels/test_on_gpu.py
asks the same of one, where there is one.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from nanwatch import inspection
from tests.hooks.fake_gpu import FakeGpu, OnGpu
from tests.kernels.planted import DTYPES, PLANTED, Planted, found_by, planted

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the kernel is compiled here: test_on_gpu.py", allow_module_level=True)

if TYPE_CHECKING:
    from nanwatch.row_kernel import RowKernel

INF, NAN = math.inf, math.nan
BLOCK = 4096


@pytest.fixture(scope="module")
def kernel() -> "RowKernel":
    """Return a kernel for a GPU of 4 multiprocessors: up to 16 parts a row."""
    from nanwatch.row_kernel import RowKernel

    return RowKernel(multiprocessors=4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 31, 1000, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
@pytest.mark.parametrize("rows", [1, 2, 7, 32])
def test_every_size_and_dtype_is_right(
    kernel: "RowKernel", rows: int, columns: int, dtype: torch.dtype
) -> None:
    logits, expected = planted(rows, columns, dtype)
    assert found_by(kernel, logits) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", PLANTED, ids=lambda layout: layout.__name__)
def test_rows_at_any_distance_and_any_alignment_are_right(
    kernel: "RowKernel", layout: Planted, dtype: torch.dtype
) -> None:
    logits, expected = layout(5, BLOCK + 70, dtype)
    assert found_by(kernel, logits) == expected


@pytest.mark.parametrize(
    ("dtype", "nans", "infinities"),
    [
        (torch.float16, lambda p: (p & 0x7FFF) > 0x7C00, {0x7C00: 1, 0xFC00: -1}),
        (torch.bfloat16, lambda p: (p & 0x7FFF) > 0x7F80, {0x7F80: 1, 0xFF80: -1}),
        (torch.float8_e4m3fn, lambda p: (p & 0x7F) == 0x7F, {}),
        (torch.float8_e5m2, lambda p: (p & 0x7F) > 0x7C, {0x7C: 1, 0xFC: -1}),
    ],
    ids=["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"],
)
def test_every_bit_pattern_is_told_apart_by_the_rule_of_its_format(
    kernel: "RowKernel", dtype: torch.dtype, nans: Callable[[int], bool], infinities: dict[int, int]
) -> None:
    """Of 16 bits: 256 rows of 256 patterns; of 8: 256 rows of one, so that the one of -inf is masked."""
    count = 1 << (8 * dtype.itemsize)
    integers = torch.uint8 if dtype.itemsize == 1 else torch.uint16
    logits = torch.arange(count).to(integers).view(dtype).reshape(256, -1)
    rows = [range(row * count // 256, (row + 1) * count // 256) for row in range(256)]
    assert found_by(kernel, logits) == [
        (
            sum(map(nans, row)),
            sum(infinities.get(pattern) == 1 for pattern in row),
            all(infinities.get(pattern) == -1 for pattern in row),
        )
        for row in rows
    ]


def test_signalling_negative_and_payload_nans_are_nans(kernel: "RowKernel") -> None:
    bits = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, -0x7FFFFF, -0x400000, -1], dtype=torch.int32)
    assert found_by(kernel, bits.view(torch.float32).unsqueeze(-1)) == [(1, 0, False)] * 6


def test_a_row_past_two_gigabytes_is_found(kernel: "RowKernel") -> None:
    """R × V past 2^31: the memory between the rows is never touched."""
    stride = (1 << 31) + 32
    memory = torch.empty(stride + 64, dtype=torch.uint8)
    logits = memory.as_strided((2, 64), (stride, 1))
    logits[0], logits[1] = 0, 0x7F  # NaN in E5M2
    assert found_by(kernel, logits.view(torch.float8_e5m2)) == [(0, 0, False), (64, 0, False)]


@pytest.mark.parametrize(
    ("logits", "why"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), "a dtype that it does not read"),
        (torch.zeros(3, 2).t(), "a last dimension at a stride"),
        (torch.zeros(2, 3, 4).permute(1, 0, 2), "rows at no equal distance"),
        (torch.zeros(0, 4), "no rows"),
        (torch.zeros(4, 0), "no columns"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_it_does_not_take_it_says(kernel: "RowKernel", logits: Tensor, why: str) -> None:
    assert kernel.rows_of(logits) is None


@pytest.mark.parametrize(
    ("rows", "columns", "parts"),
    [(1, 151_936, 38), (8, 151_936, 38), (256, 151_936, 3), (528, 151_936, 1), (4096, 1000, 1), (1, 1, 1)],
)
def test_few_long_rows_are_read_in_as_many_parts_as_fill_132_multiprocessors(
    rows: int, columns: int, parts: int
) -> None:
    from nanwatch.row_kernel import RowKernel

    h200 = RowKernel(132)
    taken = h200.rows_of(torch.empty(1, columns).expand(rows, columns))
    assert taken is not None
    assert h200.shape_for(taken) == (rows, parts, 3)


@pytest.mark.parametrize("columns", [1, 4095, 4096, 4097, 100_000, 151_936, 262_144])
@pytest.mark.parametrize("rows", [1, 3, 100, 700])
def test_no_part_is_empty_and_none_is_left_out(rows: int, columns: int) -> None:
    from nanwatch.row_kernel import RowKernel, _part_columns

    h200 = RowKernel(132)
    taken = h200.rows_of(torch.empty(1, 1).expand(rows, columns)[:, :1].expand(rows, columns))
    if taken is None:
        taken = h200.rows_of(torch.empty(1, columns).expand(rows, columns))
    assert taken is not None
    parts = h200.shape_for(taken).parts
    step = _part_columns(columns, parts)
    assert (parts - 1) * step < columns <= parts * step


def test_the_trial_passes_here_and_a_kernel_with_wrong_numbers_fails_it(
    kernel: "RowKernel", monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.try_it(torch.device("cpu"))
    monkeypatch.setattr(
        type(kernel), "inspect", lambda _self, rows: torch.zeros(3, rows.rows, dtype=torch.int32)
    )
    with pytest.raises(RuntimeError, match=r"wrong numbers for torch\.float32"):
        kernel.try_it(torch.device("cpu"))


# The kernel inside a probe's sight: a fake says that the logits are on a GPU.


@pytest.fixture
def gpu(kernel: "RowKernel", monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr("nanwatch.looking.kernel_for", lambda _logits: kernel)
    return FakeGpu()


def test_it_writes_straight_into_a_slot_and_nothing_is_copied(gpu: FakeGpu) -> None:
    from tests.hooks.test_looking import found_in, looked_at

    logits, expected = planted(7, 3 * BLOCK - 5, torch.bfloat16)
    step = looked_at(gpu, logits.as_subclass(OnGpu))
    assert found_in(step) == expected
    assert gpu.copy.waiting == []


def test_where_it_cannot_be_launched_torch_counts_and_the_step_is_not_lost(
    gpu: FakeGpu, kernel: "RowKernel", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.hooks.test_looking import found_in, looked_at

    def fail(*_: object) -> None:
        raise RuntimeError("no such launch")

    monkeypatch.setattr(type(kernel), "launch", fail)
    monkeypatch.setattr(inspection, "_kernels", {})
    logits, expected = planted(3, 50, torch.float32)
    step = looked_at(gpu, logits.as_subclass(OnGpu))
    assert found_in(step) == expected
    assert "could not be launched: no such launch" in caplog.text
    assert inspection._kernels == {0: None}
