"""What looking at logits on the CPU costs: `python -m benchmarks.counting`, about a minute.

Measured is what `observe` does: NaN, +inf and fully masked rows, on clean logits, as nearly every step makes
them, of two vocabularies in use. Two yardsticks: the plain `logits.isnan().sum(-1)`, which says less, and one
bare `logits.sum(-1)`, below which no exact screen can go.

In one thread: several wait for the last of them to be scheduled, and where anything else runs on the machine
that wait is all that would be measured. How it is with torch's own threads is shown at one shape, without
a goal: what the plain way is divided by is then mostly that wait.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch

from benchmarks.measure import AtLeast, AtMost, Line, Spread, one_thread, print_table, take_turns
from nanwatch.counting import count_nans_per_row
from nanwatch.inspection import inspect_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

SHAPES = [(64, 128256), (256, 151936)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FASTER_THAN_PLAIN = AtLeast(10)
AS_FAST_AS_ONE_SUM = AtMost(1.25)
FIXED_MICROSECONDS = AtMost(10)


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    with one_thread():
        lines = [*_clean_steps(), *_one_small_row(), *_one_bad_row(), *_nothing_but_nans()]
    lines += _with_torchs_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    print_table(f"Looking at logits on the CPU: torch {torch.__version__}, one thread, {capability}", lines)


def _clean_steps() -> Iterator[Line]:
    for shape in SHAPES:
        for dtype in DTYPES:
            yield from _clean_step(torch.randn(shape).to(dtype))


def _clean_step(logits: Tensor) -> Iterator[Line]:
    rounds = take_turns(_contestants(logits), stands_for_block=min)
    name = _name(logits)
    yield Line(
        f"{name} isnan().sum(-1) / looking", rounds.ratio("isnan().sum(-1)", "looking"), FASTER_THAN_PLAIN
    )
    yield Line(f"{name} looking / sum(-1)", rounds.ratio("looking", "sum(-1)"), AS_FAST_AS_ONE_SUM)
    yield Line(f"{name} looking, microseconds", rounds.microseconds("looking"))


def _contestants(logits: Tensor) -> dict[str, Callable[[], object]]:
    return {
        "looking": functools.partial(inspect_on_cpu, logits),
        "isnan().sum(-1)": lambda: logits.isnan().sum(-1),
        "sum(-1)": lambda: logits.sum(-1),
    }


def _one_small_row() -> Iterator[Line]:
    """Measure what is left when there is next to nothing to read."""
    logits = torch.randn(1, 32)
    rounds = take_turns({"looking": functools.partial(inspect_on_cpu, logits)}, stands_for_block=min)
    yield Line(f"{_name(logits)} looking, microseconds", rounds.microseconds("looking"), FIXED_MICROSECONDS)


def _one_bad_row() -> Iterator[Line]:
    """Measure what one row with a NaN adds to a step, in plain counts of that one row."""
    clean = torch.randn(SHAPES[0])
    bad = clean.clone()
    bad[7, 7] = math.nan
    row = bad[7]
    rounds = take_turns(
        {
            "clean": functools.partial(inspect_on_cpu, clean),
            "bad": functools.partial(inspect_on_cpu, bad),
            "counting alone": functools.partial(count_nans_per_row, bad),
            "row": lambda: row.isnan().sum(-1),
        },
        stands_for_block=min,
    )
    for name, what in (("bad", "NaN, +inf and mask"), ("counting alone", "NaN alone")):
        columns = (rounds.seconds[each] for each in (name, "clean", "row"))
        added = Spread.of((bad - clean) / row for bad, clean, row in zip(*columns, strict=True))
        yield Line(f"{_name(clean)} a row with a NaN adds ({what}), in its isnan().sum(-1)", added)


def _with_torchs_threads() -> Iterator[Line]:
    """Measure the first shape in as many threads as torch takes by itself."""
    logits = torch.randn(SHAPES[0])
    rounds = take_turns(_contestants(logits))
    name = f"{_name(logits)}, {torch.get_num_threads()} threads:"
    yield Line(f"{name} isnan().sum(-1) / looking", rounds.ratio("isnan().sum(-1)", "looking"))
    yield Line(f"{name} looking / sum(-1)", rounds.ratio("looking", "sum(-1)"), AS_FAST_AS_ONE_SUM)


def _nothing_but_nans() -> Iterator[Line]:
    """Measure the worst step: every row is a suspect, and has to be counted after it was screened."""
    logits = torch.full(SHAPES[0], math.nan)
    rounds = take_turns(
        {
            "looking": functools.partial(inspect_on_cpu, logits),
            "isnan().sum(-1)": lambda: logits.isnan().sum(-1),
        },
        stands_for_block=min,
    )
    ratio = rounds.ratio("isnan().sum(-1)", "looking")
    yield Line(f"{_name(logits)} all NaN: isnan().sum(-1) / looking", ratio)


def _name(logits: Tensor) -> str:
    return f"{list(logits.shape)} {str(logits.dtype).removeprefix('torch.')}"


if __name__ == "__main__":
    main()
