"""What else a logits row can show at the price of counting its NaNs: +inf, and nothing but -inf.

On the CPU the sum that screens for NaNs screens for these too:
    sum of the row   can hold                          second look, only at such rows
    finite           nothing of interest               none
    NaN              NaN, or +inf and -inf together    count both
    +inf             +inf, or float16 that overflowed  is its greatest value +inf? Asked of its bits as
                                                       integers: up to six times as fast as of the floats.
                                                       Then count +inf
    -inf             -inf; all of it may be            are its first and last values -inf? Then look whether
                                                       its greatest is
On a GPU one kernel reads the logits once (kernels.py), where Triton is there; else torch looks three times.

    R = rows (all dimensions but the last), V = vocabulary
"""

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .counting import FLOAT8, all_rows, blocks_of, check_logits, is_plain

if TYPE_CHECKING:
    from .row_kernel import RowKernel, Rows

logger = logging.getLogger("nanwatch")

# The integers of the same size, and +inf in them: positive floats are ordered as their bits are.
_BITS_OF_INFINITY = {
    torch.float64: (torch.int64, 0x7FF << 52),
    torch.float32: (torch.int32, 0x7F80 << 16),
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
}


_kernels: "dict[int, RowKernel | None]" = {}  # by the GPU's index


class RowCounts(NamedTuple):
    """What each row holds, on the device of the logits."""

    nan: Tensor  # [...] int32
    posinf: Tensor  # [...] int32, how often +inf
    fully_masked: Tensor  # [...] bool, nothing but -inf, and at least one


def inspect_rows(logits: Tensor) -> RowCounts:
    """Count NaN and +inf in each row of logits, and say which rows are -inf from end to end.

    [[0., nan, inf], [-inf, -inf, -inf]] -> nan [1, 0], posinf [1, 0], fully_masked [False, True].

    Args:
        logits: [..., V] of any dtype and strides that count_nans_per_row takes. Only read.

    Returns:
        Three tensors [...] on the device of the logits. The host waits for no device, save at the first
        call on a GPU, which makes and tries the kernel; a call inside a capture never does.

    Raises:
        TypeError, ValueError: as count_nans_per_row.
    """
    check_logits(logits)
    if logits.is_cpu and is_plain(logits):
        return inspect_on_cpu(logits) or _nothing_found(logits)
    found = kernel_for(logits)
    if found is None:
        return inspect_eagerly(logits)
    kernel, rows = found
    cells = kernel.inspect(rows)  # [3, R]
    return RowCounts(*(plane.reshape(logits.shape[:-1]) for plane in (cells[0], cells[1], cells[2] > 0)))


def inspect_on_cpu(logits: Tensor) -> RowCounts | None:
    """As inspect_rows, for a plain tensor on the CPU; None where no row holds anything of that kind."""
    logits = logits.detach()
    if logits.dtype in FLOAT8:
        return _inspect_in_blocks(logits)
    screen = logits.sum(-1)
    return None if math.isfinite(screen.sum().item()) else _look_again(logits, screen)


def inspect_eagerly(logits: Tensor) -> RowCounts:
    """As inspect_rows, on any device, through masks of the shape of the logits."""
    if logits.dtype in FLOAT8:
        logits = logits.float()
    nan = logits.isnan().sum(-1, dtype=torch.int32)
    posinf = (logits == math.inf).sum(-1, dtype=torch.int32)
    if logits.shape[-1] == 0:
        return RowCounts(nan, posinf, torch.zeros_like(nan, dtype=torch.bool))
    return RowCounts(nan, posinf, logits.amax(-1) == -math.inf)


def kernel_for(logits: Tensor) -> "tuple[RowKernel, Rows] | None":
    """Return the kernel of the GPU that holds the logits, and them as it takes them; None: go another way.

    Inside a capture nothing is made, tried or compiled.
    """
    if not logits.is_cuda or not is_plain(logits) or torch.compiler.is_compiling():
        return None
    capturing = torch.cuda.is_current_stream_capturing()
    kernel = _kernels.get(logits.device.index) if capturing else make_kernel(logits.device)
    rows = kernel.rows_of(logits) if kernel is not None else None
    if kernel is None or rows is None or (capturing and not kernel.is_compiled_for(rows)):
        return None
    return kernel, rows


def make_kernel(device: torch.device) -> "RowKernel | None":
    """Make and try the kernel of a GPU, once; None: it cannot be had here. Waits, so never in a capture."""
    index: int | None = device.index
    if index is None:
        index = torch.cuda.current_device()
    if index not in _kernels:
        _kernels[index] = _tried_kernel(index)
    return _kernels[index]


def give_up_kernel(device: torch.device, error: Exception) -> None:
    """Count with torch's own operations from now on, on this GPU."""
    if device.index is not None:
        _kernels[device.index] = None
    logger.warning("nanwatch counts with torch's own operations: its kernel could not be launched: %s", error)


def _tried_kernel(index: int) -> "RowKernel | None":
    try:
        from .row_kernel import RowKernel

        with torch.cuda.device(index):
            kernel = RowKernel(torch.cuda.get_device_properties(index).multi_processor_count)
            kernel.try_it(torch.device("cuda", index))
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001  a compiler that fails here is no reason to count nothing
        logger.warning("nanwatch counts with torch's own operations, its kernel failed its trial: %s", error)
        return None
    return kernel


def _look_again(logits: Tensor, screen: Tensor) -> RowCounts | None:
    """Look at each row [V] of the logits for what its sum in `screen` [...] says that it can hold."""
    nan, plus, minus = screen.isnan(), screen == math.inf, screen == -math.inf
    if plus.any():  # a row of no values has the sum 0, so V is above 0 here, and below
        integers, infinity = _BITS_OF_INFINITY[logits.dtype]
        plus &= logits.view(integers).amax(-1) == infinity
    minus &= (logits[..., 0] == -math.inf) & (logits[..., -1] == -math.inf)
    if not (nan | plus | minus).any():
        return None
    found = _nothing_found(logits)
    for index in blocks_of(logits, nan):
        found.nan[index] = logits[index].isnan().sum(-1, dtype=torch.int32)
    for index in blocks_of(logits, nan | plus):
        found.posinf[index] = (logits[index] == math.inf).sum(-1, dtype=torch.int32)
    for index in blocks_of(logits, minus):
        found.fully_masked[index] = logits[index].amax(-1) == -math.inf
    return found


def _inspect_in_blocks(logits: Tensor) -> RowCounts:
    found = _nothing_found(logits)
    for index in blocks_of(logits, all_rows(logits)):
        for whole, part in zip(found, inspect_eagerly(logits[index]), strict=True):
            whole[index] = part
    return found


def _nothing_found(logits: Tensor) -> RowCounts:
    rows = logits.shape[:-1]
    nan, posinf = (torch.zeros(rows, dtype=torch.int32, device=logits.device) for _ in range(2))
    return RowCounts(nan, posinf, torch.zeros(rows, dtype=torch.bool, device=logits.device))
