"""How the kernel is launched: over which rows, in how many parts, and without Triton's binder each time.

`kernel[grid](...)` looks at the type and alignment of every argument anew, some 8 microseconds of Python;
what it compiled is kept here by (dtype, aligned), all that it depends on, and launched by hand.
A Triton that wants to be launched in another way is found out at the trial, and gets its own way.
    R = rows, S = parts of a row, V = vocabulary; cells [3, R, S] int32
"""

import logging
import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .findings import PLANES, Shape
from .kernels import inspect_parts
from .readback import MOST_PROGRAMS

logger = logging.getLogger("nanwatch")

BLOCK = 4096  # values that a program holds at once; a part is a multiple of them
WARPS = 8
PROGRAMS_PER_MULTIPROCESSOR = 4
_MOST_COLUMNS = 2**31 - 2 * BLOCK  # columns are counted in 32 bits, offsets in 64
_VECTOR_BYTES = 16

# How the values are read, as kernels.as_float32 knows them.
_FLOAT, _E4M3FN, _E5M2 = 0, 1, 2
_KINDS = {
    torch.float32: _FLOAT,
    torch.float16: _FLOAT,
    torch.bfloat16: _FLOAT,
    torch.float8_e4m3fn: _E4M3FN,
    torch.float8_e5m2: _E5M2,
}


class Rows(NamedTuple):
    """Logits [..., V] as rows at equal distances."""

    logits: Tensor  # float8 as bytes
    kind: int
    rows: int
    columns: int
    stride: int  # values from one row to the next

    @property
    def aligned(self) -> bool:
        """Whether every row begins where a load of 16 bytes may."""
        size = self.logits.element_size()
        return (self.logits.data_ptr() | self.stride * size) % _VECTOR_BYTES == 0


class RowKernel:
    """The kernel for one device."""

    def __init__(self, multiprocessors: int) -> None:
        self._programs = min(MOST_PROGRAMS, PROGRAMS_PER_MULTIPROCESSOR * multiprocessors)
        self._compiled: dict[tuple[torch.dtype, bool], Any] = {}
        self._by_hand = True  # launch what is compiled without asking Triton's binder each time

    def rows_of(self, logits: Tensor) -> Rows | None:
        """Return the logits as the kernel takes them; None: another way has to be found."""
        kind = _KINDS.get(logits.dtype)
        if kind is None or not 0 < logits.shape[-1] < _MOST_COLUMNS or not logits.numel():
            return None
        if logits.stride(-1) != 1 and logits.shape[-1] > 1:
            return None
        stride = _row_stride(logits)
        if stride is None:
            return None
        columns = logits.shape[-1]
        raw = logits.detach() if kind == _FLOAT else logits.detach().view(torch.uint8)
        return Rows(raw, kind, logits.numel() // columns, columns, stride)

    def shape_for(self, rows: Rows) -> Shape:
        """Return how the cells lie: so many parts that few rows fill the GPU too."""
        parts = self._parts(rows)
        return Shape(rows.rows, -(-rows.columns // _part_columns(rows.columns, parts)), PLANES)

    def launch(self, rows: Rows, cells: Tensor, shape: Shape) -> None:
        """Start the kernel on the current stream of the rows' device; `cells` takes [3, R, S] int32."""
        device = rows.logits.device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._launch(rows, cells, shape)
        else:
            self._launch(rows, cells, shape)

    def _launch(self, rows: Rows, cells: Tensor, shape: Shape) -> None:
        key = (rows.logits.dtype, rows.aligned)
        arguments = (
            rows.logits,
            cells,
            rows.stride,
            rows.columns,
            _part_columns(rows.columns, shape.parts),
            rows.kind,
            key[1],
            BLOCK,
        )
        compiled = self._compiled.get(key)
        if compiled is None or not self._by_hand:
            self._compiled[key] = inspect_parts[shape.rows, shape.parts](*arguments, num_warps=WARPS)
            return
        stream = triton.runtime.driver.active.get_current_stream(rows.logits.device.index)
        function, packed = compiled.function, compiled.packed_metadata
        compiled.run(shape.rows, shape.parts, 1, stream, function, packed, None, None, None, *arguments)

    def inspect(self, rows: Rows) -> Tensor:
        """Return what each row holds, [3, R] int32 on the device: NaNs, +inf, 1 if fully masked."""
        shape = self.shape_for(rows)
        cells = torch.empty(shape.cells, dtype=torch.int32, device=rows.logits.device)
        self.launch(rows, cells, shape)
        cells = cells.view(PLANES, shape.rows, shape.parts)
        if shape.parts == 1:
            return cells.squeeze(-1)
        found = cells.sum(-1, dtype=torch.int32)
        found[2] //= shape.parts  # masked if every part is
        return found

    def try_it(self, device: torch.device) -> None:
        """Compile for the usual types, and count a few rows both ways; waits for the device.

        Raises:
            RuntimeError: the numbers are wrong.
        """
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            rows = self.rows_of(_trial(dtype, device))
            if rows is None:
                raise RuntimeError(f"a plain tensor of {dtype} was not taken")
            self._check(rows)  # compiles
            try:
                self._check(rows)
            except Exception as error:  # noqa: BLE001  a Triton that launches in another way; its own way is slower
                logger.info("nanwatch launches its kernel through Triton's binder: %s", error)
                self._by_hand = False
                self._check(rows)

    def _check(self, rows: Rows) -> None:
        found = self.inspect(rows).tolist()
        if found != [[0, 2, 0], [0, 1, 0], [0, 0, 1]]:
            raise RuntimeError(f"wrong numbers for {rows.logits.dtype}: {found}")

    def _parts(self, rows: Rows) -> int:
        return max(1, min(-(-self._programs // rows.rows), -(-rows.columns // BLOCK)))


def _part_columns(columns: int, parts: int) -> int:
    """Return the values of one part, a multiple of BLOCK: 151936 in 3 parts -> 53248 (13 blocks)."""
    return -(-columns // (parts * BLOCK)) * BLOCK


def _row_stride(logits: Tensor) -> int | None:
    """Return the values between rows where all dimensions but the last are one at equal steps.

    [2, 3, V] with the strides (3 × s, s, 1) is six rows at the distance s.
    """
    dimensions = [
        (size, stride)
        for size, stride in zip(logits.shape[:-1], logits.stride()[:-1], strict=True)
        if size > 1
    ]
    if not dimensions:
        return 0
    expected = dimensions[-1][1]
    innermost = expected
    for size, stride in reversed(dimensions):
        if stride != expected:
            return None
        expected = stride * size
    return innermost


def _trial(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make [3, V]: a clean row, one with NaN twice and +inf once, and one of -inf, in two parts each."""
    logits = torch.zeros(3, 2 * BLOCK, dtype=torch.float32)
    logits[1, [5, BLOCK + 7]] = math.nan
    logits[1, BLOCK] = math.inf
    logits[2] = -math.inf
    return logits.to(device, dtype)
