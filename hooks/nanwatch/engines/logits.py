"""Where the logits are in what a module returns.

    B = samples, T = positions, V = vocabulary, D = the width of an embedding
A sample's rows are all that its part of the tensor holds:
    [B, V]     1 row a sample      [B, D]  the same: an embedding is one row
    [B, T, V]  T rows a sample     sample b owns rows b*T to (b+1)*T - 1
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Output = str | Callable[[Any], Any] | None


def find_logits(output: Any, wanted: Output = None) -> Tensor | None:
    """Return the tensor to look at, None where the module says that it has none this time.

    Without `wanted`: the output if it is a tensor, its `logits`, its "logits", or the first item
    of a tuple. `wanted` is a key or an attribute of the output, or a function of it.

    Raises:
        TypeError: there is no such tensor of floating numbers.
    """
    found = _pick(output, wanted)
    if found is None:
        return None
    if not isinstance(found, Tensor) or not found.is_floating_point():
        raise TypeError(_not_found(output, wanted, found))
    return found


def rows_per_sample(logits: Tensor) -> int:
    """Return how many rows each sample owns: [8, 32] -> 1, [8, 3, 32] -> 3."""
    return math.prod(logits.shape[1:-1])


def ends_of(samples: int, rows: int) -> range | None:
    """Return the cumulative ends of samples of `rows` rows each: 2 samples of 3 rows -> 3, 6."""
    return None if rows == 1 else range(rows, samples * rows + 1, rows)


def _pick(output: Any, wanted: Output) -> Any:
    if callable(wanted):
        return wanted(output)
    if wanted is not None:
        return output[wanted] if isinstance(output, Mapping) else getattr(output, wanted)
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return output[0] if isinstance(output, tuple | list) and output else output


def _not_found(output: Any, wanted: Output, found: Any) -> str:
    kind = f"a tensor of {found.dtype}" if isinstance(found, torch.Tensor) else type(found).__name__
    where = "the output" if wanted is None else f"output={wanted!r}"
    return (
        f"no logits in {type(output).__name__}: {where} gives {kind}; watch(output=...) takes what has floats"
    )
