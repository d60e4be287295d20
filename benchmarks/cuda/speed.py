"""(b) Device time, by replays of a CUDA graph, as GB/s and beside what else there is.

Inputs rotate over more than four times the L2 cache: none is read from there. Contestants take turns, round
by round; the median of its replays stands for a round, and the table shows the middle half of the rounds.
    R = rows, V = columns; bytes = R × V × size of a value
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.cuda.card import Call, Device
from benchmarks.measure import AtLeast, AtMost, Line, Rounds, Spread

if TYPE_CHECKING:
    from nanwatch.row_kernel import RowKernel

V = 151_936
SHAPES = (
    (1, V, torch.float32),
    (8, V, torch.float32),
    (8, V, torch.bfloat16),
    (16, V, torch.bfloat16),
    (256, V, torch.float32),
    (256, V, torch.bfloat16),
    (1024, 128_256, torch.bfloat16),
    (4096, 128_256, torch.bfloat16),
)
COMPILED_ROWS = {8, 256, 4096}  # the others would only cost minutes of compilation
MOST_INPUTS = 1024
ROUNDS = 5
PLAIN_READ = "plain read"
OURS = "nanwatch"
BY_ROW = "one program a row"

Shape = tuple[int, int, torch.dtype]


def lines(
    card: Device, kernel: "RowKernel", shapes: tuple[Shape, ...] = SHAPES, *, compiled: bool = True
) -> Iterator[Line]:
    """Measure every shape, and judge."""
    for shape in shapes:
        yield from _lines_of(card, kernel, shape, compiled=compiled)


def _lines_of(card: Device, kernel: "RowKernel", shape: Shape, *, compiled: bool) -> Iterator[Line]:
    rows, columns, dtype = shape
    inputs = _inputs(card, rows, columns, dtype)
    compiled = compiled and rows in COMPILED_ROWS
    rounds = _measured(card, contestants(kernel, inputs[0], card.where, compiled=compiled), inputs)
    size = rows * columns * dtype.itemsize
    name = f"[{rows}, {columns}] {str(dtype).removeprefix('torch.')}"
    few = rows <= 8  # noqa: PLR2004
    yield Line(f"{name} nanwatch, microseconds", rounds.microseconds(OURS), AtMost(10) if few else None)
    yield Line(f"{name} nanwatch, GB/s", _gigabytes(rounds, OURS, size))
    yield Line(f"{name} plain read, GB/s", _gigabytes(rounds, PLAIN_READ, size))
    at_least_90_percent = AtLeast(0.9) if (rows, dtype) == (256, torch.float32) else None
    yield Line(f"{name} plain read / nanwatch", rounds.ratio(PLAIN_READ, OURS), at_least_90_percent)
    yield Line(f"{name} one program a row / nanwatch", rounds.ratio(BY_ROW, OURS), _against_rows(rows))
    for other in sorted(rounds.seconds.keys() - {OURS, PLAIN_READ, BY_ROW}):
        yield Line(f"{name} {other} / nanwatch", rounds.ratio(other, OURS))


def contestants(
    kernel: "RowKernel", like: Tensor, device: torch.device, *, compiled: bool
) -> dict[str, Callable[[Tensor], object]]:
    """Return what is measured, each a call over logits of one shape; ours writes into pinned memory."""
    from benchmarks.cuda.rivals import eager, nans_by_row

    taken = kernel.rows_of(like)
    assert taken is not None  # noqa: S101  contiguous
    shape = kernel.shape_for(taken)
    slot = torch.zeros(shape.cells, dtype=torch.int32, pin_memory=device.type == "cuda")
    on_device = torch.zeros(shape.cells, dtype=torch.int32, device=device)
    counts = torch.zeros(like.shape[0], dtype=torch.int32, device=device)

    def ours(into: Tensor) -> Callable[[Tensor], object]:
        return lambda logits: kernel.launch(taken._replace(logits=logits), into, shape)

    found: dict[str, Callable[[Tensor], object]] = {
        OURS: ours(slot),
        "nanwatch into device memory": ours(on_device),
        PLAIN_READ: lambda logits: logits.sum(-1),
        "eager isnan().sum(-1)": eager,
        BY_ROW: lambda logits: nans_by_row(logits, counts),
    }
    if compiled:
        found["torch.compile of eager"] = torch.compile(eager, dynamic=False)
    return found


def _inputs(card: Device, rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Make so many inputs that they do not fit into the L2 cache four times over; two at least."""
    size = rows * columns * dtype.itemsize
    count = min(MOST_INPUTS, max(2, 4 * card.l2_bytes // size + 2))
    return list(torch.randn(count, rows, columns, dtype=torch.float32, device=card.where).to(dtype))


def _measured(card: Device, calls: dict[str, Callable[[Tensor], object]], inputs: list[Tensor]) -> Rounds:
    replays = {
        name: card.recorded([_call(call, logits) for logits in inputs]) for name, call in calls.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for leader in range(ROUNDS):
        names = list(calls)
        for name in names[leader % len(names) :] + names[: leader % len(names)]:
            seconds[name].append(card.seconds(replays[name]) / len(inputs))
    return Rounds(seconds)


def _call(call: Callable[[Tensor], object], logits: Tensor) -> Call:
    return lambda: call(logits)


def _against_rows(rows: int) -> AtLeast:
    return AtLeast(1.5 if rows <= 16 else 0.95)  # noqa: PLR2004


def _gigabytes(rounds: Rounds, name: str, size: int) -> Spread:
    return Spread.of(size / seconds / 1e9 for seconds in rounds.seconds[name])
