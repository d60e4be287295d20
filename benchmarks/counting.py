"""What counting NaNs on the CPU costs: `python -m benchmarks.counting`, about a minute.

Clean logits, as nearly every step makes them, of two vocabularies in use. Two yardsticks:
the plain `logits.isnan().sum(-1)`, and one bare `logits.sum(-1)`, the fastest reduction that shows a NaN.

In one thread: several wait for the last of them to be scheduled, and where anything else runs on the machine
that wait is all that would be measured.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TYPE_CHECKING

import torch

from benchmarks.measure import AtLeast, AtMost, Line, print_table, take_turns
from nanwatch.counting import count_nans_per_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

SHAPES = [(64, 128256), (256, 151936)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FASTER_THAN_PLAIN = AtLeast(10)
AS_FAST_AS_ONE_SUM = AtMost(1.25)
FIXED_MICROSECONDS = AtMost(10)


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    with _one_thread():
        lines = [*_clean_steps(), *_one_small_row(), *_nothing_but_nans()]
    capability = torch.backends.cpu.get_cpu_capability()
    print_table(f"Counting NaNs on the CPU: torch {torch.__version__}, one thread, {capability}", lines)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread, and afterwards in as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _clean_steps() -> Iterator[Line]:
    for shape in SHAPES:
        for dtype in DTYPES:
            yield from _clean_step(torch.randn(shape).to(dtype))


def _clean_step(logits: Tensor) -> Iterator[Line]:
    rounds = take_turns(
        {
            "counting": functools.partial(count_nans_per_row, logits),
            "isnan().sum(-1)": lambda: logits.isnan().sum(-1),
            "sum(-1)": lambda: logits.sum(-1),
        },
        stands_for_block=min,
    )
    name = _name(logits)
    yield Line(
        f"{name} isnan().sum(-1) / counting", rounds.ratio("isnan().sum(-1)", "counting"), FASTER_THAN_PLAIN
    )
    yield Line(f"{name} counting / sum(-1)", rounds.ratio("counting", "sum(-1)"), AS_FAST_AS_ONE_SUM)
    yield Line(f"{name} counting, microseconds", rounds.microseconds("counting"))


def _one_small_row() -> Iterator[Line]:
    """Measure what is left when there is next to nothing to read."""
    logits = torch.randn(1, 32)
    rounds = take_turns({"counting": functools.partial(count_nans_per_row, logits)}, stands_for_block=min)
    yield Line(f"{_name(logits)} counting, microseconds", rounds.microseconds("counting"), FIXED_MICROSECONDS)


def _nothing_but_nans() -> Iterator[Line]:
    """Measure the worst step: every row is a suspect, and has to be counted after it was screened."""
    logits = torch.full(SHAPES[0], math.nan)
    rounds = take_turns(
        {
            "counting": functools.partial(count_nans_per_row, logits),
            "isnan().sum(-1)": lambda: logits.isnan().sum(-1),
        },
        stands_for_block=min,
    )
    ratio = rounds.ratio("isnan().sum(-1)", "counting")
    yield Line(f"{_name(logits)} all NaN: isnan().sum(-1) / counting", ratio)


def _name(logits: Tensor) -> str:
    return f"{list(logits.shape)} {str(logits.dtype).removeprefix('torch.')}"


if __name__ == "__main__":
    main()
