"""What NANWATCH_ON_NAN=abort costs while there is no NaN: `python -m benchmarks.containment`.

    R = requests in the batch, one row each
One engine of one tiny model (batching.py), made to end corrupted requests, takes turns: as it is, with all
that abort adds taken off, which is observe, and so once more, which tells how small a difference can be
seen. Shown is the median of the rounds' ratios, with the 95 % interval that its rank gives, whatever other
programs take of the machine. The cache is looked at after a hit only, so what is left is one look at who is
still there.
"""

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch

from benchmarks.batching import REQUESTS, ROUNDS, Engine, Interval, take_turns
from benchmarks.measure import AtMost, one_thread
from benchmarks.scratch import scratch_journal
from nanwatch import NanProbe

GOAL = AtMost(1)  # the ratio's lower bound: 1.00 lies within the interval
RANKS = (14, 27)  # of 40 sorted values: their median lies between these 96 times of 100
OBSERVE, ABORT, AGAIN = "observe", "abort", "observe, again"


def main() -> None:
    """Print the table."""
    with one_thread(), scratch_journal(), torch.no_grad(), _probe() as probe:
        _print(_seconds_per_step(probe))


def _seconds_per_step(probe: NanProbe) -> dict[str, list[float]]:
    """Return what a step took in each round, by what was asked for."""
    engine = Engine(probe)
    watched = engine.watched()
    containment = watched._containment  # noqa: SLF001  what abort adds is taken off and put on again
    (cache,) = (owner for owner, name, _ in engine.replaced if name == "free_blocks")

    @contextmanager
    def observe() -> Iterator[None]:
        watched._containment = None  # noqa: SLF001
        around_free = cache.pop("free_blocks")
        try:
            yield
        finally:
            watched._containment = containment  # noqa: SLF001
            cache["free_blocks"] = around_free

    return take_turns(engine, {OBSERVE: observe, ABORT: nullcontext, AGAIN: observe})


def _probe() -> NanProbe:
    with mock.patch.dict(os.environ, {"NANWATCH_ON_NAN": "abort"}):
        return NanProbe(runtime="transformers", can_abort=True)


def _print(seconds: dict[str, list[float]]) -> None:
    print(f"abort against observe, no NaN, R={REQUESTS}, {ROUNDS} rounds, median and 95 % interval")
    for name, blocks in seconds.items():
        print(f"  {name:<15} {_median([each * 1e6 for each in blocks])} microseconds a step")
    for name in (ABORT, AGAIN):
        pairs = list(zip(seconds[name], seconds[OBSERVE], strict=True))
        ratio = _median([each / observe for each, observe in pairs])
        added = _median([(each - observe) * 1e6 for each, observe in pairs])
        print(f"  {name:<15} {ratio.mean:.4f} ({ratio.low:.4f} to {ratio.high:.4f}) of {OBSERVE},")
        print(f"  {'':<15} {added} microseconds more")
        if name is ABORT:
            verdict = "met" if GOAL.is_met_by(ratio.low) else "missed"
            print(f"  {'':<15} lower bound {ratio.low:.4f}, goal {GOAL}: {verdict}")


def _median(values: list[float]) -> Interval:
    low, high = (sorted(values)[rank - 1] for rank in RANKS)
    return Interval(statistics.median(values), low, high)


if __name__ == "__main__":
    main()
