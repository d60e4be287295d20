"""count_nans_per_row says exactly how many NaNs each row holds, whatever the dtype, strides and shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nanwatch import counting
from nanwatch.counting import count_nans_per_row
from nanwatch.inspection import make_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from torch import Tensor

INF, NAN = math.inf, math.nan


def dtypes_there_are(*names: str) -> list[torch.dtype]:
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


WIDE = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8 = dtypes_there_are(
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"
)
REFUSED = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
    *dtypes_there_are("float4_e2m1fn_x2"),
]

# [2, 3, 4], [2, 3] NaNs each
CUBE = [
    [[0.0, 0.0, 0.0, 0.0], [NAN, 0.0, 0.0, NAN], [0.0, 1.0, 2.0, 3.0]],
    [[NAN, NAN, NAN, NAN], [1.0, 0.0, NAN, 0.0], [INF, -INF, 0.0, 0.0]],
]
CUBE_COUNTS = [[0, 2, 0], [4, 1, 0]]


def counted(logits: Tensor) -> Any:
    """Count, check what holds for every answer, and return nested lists."""
    counts = count_nans_per_row(logits)
    assert counts.dtype == torch.int32
    assert counts.device == logits.device
    assert counts.shape == logits.shape[:-1]
    assert not counts.requires_grad
    return counts.tolist()


def counted_in_python(logits: Tensor) -> Any:
    """Say the same without torch's arithmetic."""
    if logits.dim() == 1:
        return sum(math.isnan(value) for value in logits.double().tolist())
    return [counted_in_python(part) for part in logits]


# Every layout is the same logits to the eye, and other strides in memory.


def contiguous(logits: Tensor) -> Tensor:
    return logits.contiguous()


def every_other_column(logits: Tensor) -> Tensor:
    return torch.stack([logits, torch.full_like(logits, NAN)], dim=-1).flatten(-2)[..., ::2]


def vocabulary_first(logits: Tensor) -> Tensor:
    return logits.movedim(-1, 0).contiguous().movedim(0, -1)


def rows_reversed(logits: Tensor) -> Tensor:
    rows = range(logits.dim() - 1)
    return logits.permute(*reversed(rows), -1).contiguous().permute(*reversed(rows), -1)


def inside_a_larger_one(logits: Tensor) -> Tensor:
    return torch.nn.functional.pad(logits, (3, 2), value=NAN)[..., 3:-2]


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    contiguous,
    every_other_column,
    vocabulary_first,
    rows_reversed,
    inside_a_larger_one,
]


@st.composite
def any_logits(draw: st.DrawFn) -> Tensor:
    shape = (*draw(st.lists(st.integers(0, 4), max_size=3)), draw(st.integers(0, 9)))
    value = st.sampled_from([0.0, -0.0, 1.5, -7.25, 3e38, -3e38, INF, -INF, NAN, NAN])
    values = draw(st.lists(value, min_size=math.prod(shape), max_size=math.prod(shape)))
    logits = torch.tensor(values, dtype=torch.float64).reshape(shape)
    laid_out = draw(st.sampled_from(LAYOUTS))(logits.to(draw(st.sampled_from(WIDE))))
    expanded_by = draw(st.sampled_from([None, 0, 1, 3]))
    return laid_out if expanded_by is None else laid_out.expand(expanded_by, *shape)


@settings(max_examples=400, deadline=None)
@given(logits=any_logits(), block_values=st.integers(1, 40))
def test_any_logits_in_any_layout_are_counted_as_plain_python_counts_them(
    logits: Tensor, block_values: int
) -> None:
    with mock.patch.object(counting, "BLOCK_VALUES", block_values):
        assert counted(logits) == counted_in_python(logits)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize(
    ("row", "nans"),
    [
        pytest.param([0.0] * 32, 0, id="clean"),
        pytest.param([-INF] * 31 + [1.0], 0, id="31 of 32 masked"),
        pytest.param([-INF] * 32, 0, id="all masked"),
        pytest.param([INF] + [0.0] * 31, 0, id="one +inf"),
        pytest.param([INF, -INF] + [0.0] * 30, 0, id="both infinities"),
        pytest.param([NAN] + [0.0] * 31, 1, id="one NaN"),
        pytest.param([NAN, INF, -INF, NAN, NAN] + [-INF] * 27, 3, id="NaN among infinities"),
        pytest.param([NAN, -NAN] * 16, 32, id="all NaN"),
    ],
)
def test_only_nan_is_counted_never_a_mask_or_an_infinity(
    row: list[float], nans: int, dtype: torch.dtype
) -> None:
    assert counted(torch.tensor(row, dtype=dtype)) == nans
    assert counted(torch.tensor([[0.0] * 32, row, row], dtype=dtype)) == [0, nans, nans]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_rows_whose_sum_overflows_hold_no_nan(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    assert counted(torch.tensor([[largest] * 64 + [-largest] * 64, [-largest] * 128], dtype=dtype)) == [0, 0]


def test_a_row_of_plus_infinity_beside_one_of_minus_infinity_holds_no_nan() -> None:
    assert counted(torch.tensor([[INF, INF], [-INF, -INF]])) == [0, 0]


def test_a_nan_is_charged_to_its_own_row() -> None:
    logits = torch.zeros(8, 32)
    logits[6, [3, 7, 11, 30, 31]] = NAN
    logits[2, 0] = NAN
    assert counted(logits) == [0, 0, 1, 0, 0, 0, 5, 0]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("background", [1.0, -INF], ids=["numbers", "masked"])
def test_a_nan_is_seen_at_every_place_of_a_long_row(dtype: torch.dtype, background: float) -> None:
    logits = torch.full((1031, 1031), background, dtype=dtype).fill_diagonal_(NAN)
    assert counted(logits) == [1] * 1031


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("place", [0, 1, 75_967, 75_968, 151_935])
def test_a_nan_is_seen_where_several_threads_share_one_row(dtype: torch.dtype, place: int) -> None:
    logits = torch.ones(1, 151_936, dtype=dtype)
    logits[0, place] = NAN
    assert counted(logits) == [1]
    assert counted(logits[0]) == 1


@pytest.mark.parametrize(
    ("dtype", "patterns"),
    [
        (torch.float32, [0x7F800001, 0x7FC00000, 0x7FFFFFFF, -0x7FFFFF, -0x400000, -1]),
        (torch.float64, [0x7FF << 52 | 1, 0x7FF8 << 48, (1 << 63) - 1, 1 - (1 << 52), -(1 << 51), -1]),
    ],
    ids=["float32", "float64"],
)
def test_signalling_negative_and_payload_nans_are_nans(dtype: torch.dtype, patterns: list[int]) -> None:
    bits = torch.tensor(patterns, dtype={4: torch.int32, 8: torch.int64}[dtype.itemsize])
    nans = bits.view(dtype)
    assert counted(nans.unsqueeze(-1)) == [1] * 6
    assert counted(torch.cat([torch.zeros(100, dtype=dtype), nans])) == 6


@pytest.mark.parametrize(
    ("dtype", "infinity"), [(torch.float16, 0x7C00), (torch.bfloat16, 0x7F80)], ids=["float16", "bfloat16"]
)
@pytest.mark.parametrize("width", [1, 2, 67])
def test_every_16_bit_pattern_is_told_apart_by_the_rule_of_ieee_754(
    dtype: torch.dtype, infinity: int, width: int
) -> None:
    patterns = torch.arange(65536)
    logits = patterns.to(torch.uint16).view(dtype).unsqueeze(-1)
    is_nan = (patterns & 0x7FFF) > infinity  # all exponent bits set, and one of the mantissa's
    assert counted(logits.repeat(1, width)) == (is_nan * width).tolist()


@pytest.mark.parametrize(
    ("name", "nans"),
    [
        ("float8_e4m3fn", {0x7F, 0xFF}),
        ("float8_e4m3fnuz", {0x80}),
        ("float8_e5m2", {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}),
        ("float8_e5m2fnuz", {0x80}),
        ("float8_e8m0fnu", {0xFF}),
    ],
)
def test_every_8_bit_pattern_is_told_apart_by_the_rule_of_its_format(
    name: str, nans: Collection[int]
) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    logits = torch.arange(256).to(torch.uint8).view(getattr(torch, name))
    assert counted(logits) == len(nans)
    assert counted(logits.unsqueeze(-1)) == [int(pattern in nans) for pattern in range(256)]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (2, 0, 5)], ids=str)
def test_float8_may_be_empty_too(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert counted(torch.zeros(shape).to(dtype)) == torch.zeros(shape[:-1]).tolist()


@pytest.mark.parametrize("dtype", [*WIDE, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_three_dimensions_are_right_in_every_layout(
    layout: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    assert counted(layout(torch.tensor(CUBE).to(dtype))) == CUBE_COUNTS


def test_the_layouts_differ_in_their_strides() -> None:
    strides = {layout(torch.tensor(CUBE)).stride() for layout in LAYOUTS}
    assert len(strides) == len(LAYOUTS)


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ((0, 8), []),
        ((3, 0), [0, 0, 0]),
        ((0, 0), []),
        ((0,), 0),
        ((2, 0, 8), [[], []]),
        ((2, 1, 0), [[0], [0]]),
    ],
    ids=str,
)
def test_no_rows_and_no_vocabulary_are_right(shape: tuple[int, ...], counts: object) -> None:
    assert counted(torch.empty(shape)) == counts


def test_one_dimension_is_one_row() -> None:
    assert counted(torch.tensor([NAN, 1.0, NAN])) == 2
    assert counted(torch.tensor([0.0, 1.0, 2.0])) == 0


def test_five_dimensions_are_right() -> None:
    logits = torch.zeros(2, 1, 3, 2, 7)
    logits[1, 0, 2, 1, 3:] = NAN
    assert counted(logits) == [[[[0, 0]] * 3], [[[0, 0], [0, 0], [0, 4]]]]


def test_expanded_rows_and_expanded_columns_are_right() -> None:
    assert counted(torch.tensor([[0.0, NAN, NAN]]).expand(3, 3)) == [2, 2, 2]
    assert counted(torch.tensor([[0.0], [NAN]]).expand(2, 5)) == [0, 5]
    assert counted(torch.tensor(NAN).expand(2, 2, 3)) == [[3, 3], [3, 3]]


def test_more_suspects_than_a_block_holds_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "BLOCK_VALUES", 96)
    logits = torch.zeros(11, 32)
    for row in range(11):
        logits[row, :row] = NAN
    assert counted(logits) == list(range(11))


def test_the_logits_are_only_read() -> None:
    logits = torch.tensor(CUBE)
    bits = logits.view(torch.int32).clone()
    version = logits._version
    count_nans_per_row(logits)
    assert torch.equal(logits.view(torch.int32), bits)
    assert logits._version == version


# What never happens: a mask of everything, a graph, a wait.


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operation, and the bytes of each newly allocated tensor; a view allocates none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []
        self.allocated_bytes: list[int] = []

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        older = {storage_of(arg) for arg in args if isinstance(arg, torch.Tensor)}
        self.operations.append(func.overloadpacket.__name__)
        self.allocated_bytes += [new.nbytes for new in tensors_in(out) if storage_of(new) not in older]
        return out


def storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def tensors_in(out: object) -> Iterator[Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, (list, tuple)):
        for item in out:
            yield from tensors_in(item)


def recorded(logits: Tensor, look: Callable[[Tensor], object] = count_nans_per_row) -> Recorder:
    recorder = Recorder()
    with recorder:
        look(logits)
    return recorder


def largest_allocation(logits: Tensor) -> int:
    return max(recorded(logits).allocated_bytes)


@pytest.mark.parametrize("fill", [0.0, INF, -INF])
def test_a_step_without_suspects_is_two_sums_one_look_and_the_zeros(fill: float) -> None:
    """Each operation more is a microsecond more on the engine's thread, at every step."""
    assert recorded(torch.full((4, 32), fill)).operations == [
        "sum",
        "sum",
        "_local_scalar_dense",
        "zeros_like",
    ]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_clean_rows_are_counted_without_a_mask(dtype: torch.dtype) -> None:
    logits = torch.zeros(64, 1024, dtype=dtype)
    assert largest_allocation(logits) <= 64 * 8
    assert largest_allocation(torch.nn.Parameter(logits)) <= 64 * 8


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_one_suspect_is_read_where_it_lies_into_a_mask_of_one_row(dtype: torch.dtype) -> None:
    logits = torch.zeros(64, 1024, dtype=dtype)
    logits[5, 5] = NAN
    assert largest_allocation(logits) == 1024


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("dtype", [*WIDE, torch.float8_e5m2], ids=str)
def test_a_step_of_nothing_but_suspects_needs_a_copy_of_one_block(
    layout: Callable[[Tensor], Tensor], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "BLOCK_VALUES", 5 * 512 + 511)
    logits = layout(torch.full((2, 32, 512), NAN).to(dtype))
    assert largest_allocation(logits) == 5 * 512 * dtype.itemsize


def test_a_block_is_bounded_for_real_vocabularies() -> None:
    assert largest_allocation(torch.tensor(NAN).expand(64, 151936)) <= 4 << 20


class NoGraph(TorchFunctionMode):
    """Fails where a call returns something that autograd follows."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        assert not any(tensor.requires_grad for tensor in tensors_in(out)), func
        return out


@pytest.mark.parametrize("fill", [0.0, NAN])
def test_logits_that_require_grad_are_counted_without_an_autograd_graph(fill: float) -> None:
    weight = torch.full((4, 8), fill, requires_grad=True)
    logits = weight * 2
    with NoGraph():
        counts = count_nans_per_row(logits)
    assert counts.tolist() == counted(logits.detach()) == [8 if math.isnan(fill) else 0] * 4
    assert counted(torch.nn.Parameter(weight)) == counts.tolist()


@pytest.mark.parametrize("fill", [0.0, NAN])
@pytest.mark.parametrize("inside", [True, False], ids=["inside inference mode", "after inference mode"])
def test_inference_tensors_are_counted(fill: float, inside: bool) -> None:  # noqa: FBT001
    with torch.inference_mode():
        logits = torch.full((4, 8), fill)
    with torch.inference_mode(mode=inside):
        assert counted(logits) == [8 if math.isnan(fill) else 0] * 4


def test_another_default_device_or_dtype_or_autocast_changes_nothing() -> None:
    clean, bad = torch.zeros(2, 4), torch.tensor([[0.0, NAN], [NAN, NAN]])
    bad8 = bad.to(torch.float8_e5m2)
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert (counted(clean), counted(bad), counted(bad8)) == ([0, 0], [1, 2], [1, 2])


@pytest.mark.parametrize("dtype", [*WIDE, *FLOAT8], ids=str)
def test_on_another_device_nothing_waits_for_the_counts(dtype: torch.dtype) -> None:
    """A meta tensor holds no values: whoever looks at one fails."""
    counts = count_nans_per_row(torch.empty(3, 5, 7, device="meta", dtype=dtype))
    assert (counts.shape, counts.dtype, counts.device.type) == ((3, 5), torch.int32, "meta")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_on_a_gpu_the_counts_are_the_same_and_the_host_does_not_wait(dtype: torch.dtype) -> None:
    logits = torch.tensor(CUBE, dtype=dtype, device="cuda")
    make_kernel(logits.device)  # which waits, once
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts = count_nans_per_row(logits)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert counts.device == logits.device
    assert counts.tolist() == CUBE_COUNTS


class Tagged(torch.Tensor):
    """A subclass as engines make them, to carry something along."""


def test_a_subclass_is_counted_like_a_tensor() -> None:
    tagged = torch.tensor(CUBE).as_subclass(Tagged)
    assert counted(tagged) == CUBE_COUNTS
    assert counted(torch.zeros(2, 3).as_subclass(Tagged)) == [0, 0]


def test_a_tensor_without_values_to_look_at_still_has_a_shape_of_counts() -> None:
    with FakeTensorMode():
        counts = count_nans_per_row(torch.empty(3, 7))
        assert (counts.shape, counts.dtype, counts.device.type) == ((3,), torch.int32, "cpu")


# Whose fault it is: the caller's, told with what came and what was expected.


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_a_dtype_without_nan_is_refused_by_name(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"one of the dtypes .*torch\.float32.*, got {dtype}$"):
        count_nans_per_row(torch.empty(2, 4, dtype=dtype))


def test_the_refusal_lists_every_dtype_that_is_counted() -> None:
    with pytest.raises(TypeError) as refusal:
        count_nans_per_row(torch.zeros(2, 4, dtype=torch.int64))
    assert all(str(dtype) in str(refusal.value) for dtype in [*WIDE, *FLOAT8])


@pytest.mark.parametrize("fill", [0.0, NAN])
def test_a_tensor_without_dimensions_is_refused(fill: float) -> None:
    with pytest.raises(ValueError, match=r"shape \[\.\.\., V\], got a 0-d tensor"):
        count_nans_per_row(torch.tensor(fill))


@pytest.mark.parametrize("not_logits", [None, [[0.0, NAN]], 1.0], ids=repr)
def test_what_is_no_tensor_is_refused_by_its_type(not_logits: Any) -> None:
    with pytest.raises(TypeError, match=f"must be a tensor, got {type(not_logits).__name__}"):
        count_nans_per_row(not_logits)
