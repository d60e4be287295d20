"""What NANWATCH_ON_NAN=abort costs while there is no NaN: `python -m benchmarks.containment`.

    R = requests in the batch, one row each
Two copies of one tiny model serve the same requests with the continuous batching of Transformers, in turns:
observed, and ready to end a corrupted request. As in serving.py a step is the engine's Python and little
else, and only blocks of one round are compared: shown is the median of the rounds' ratios, with the 95 %
interval that its rank gives, whatever other programs take of the machine. The cache is looked at after a hit
only, so what is left is one comparison of the counts and one look at who is still there.
"""

import copy
import os
import statistics
from unittest import mock

import torch

from benchmarks.measure import AtMost, one_thread
from benchmarks.scratch import scratch_journal
from benchmarks.serving import REQUESTS, ROUNDS, Interval, _block_of, _manager_of, _tiny_model
from nanwatch import NanProbe
from nanwatch.engines.huggingface.continuous import ContinuousWatcher

GOAL = AtMost(1)  # the ratio's lower bound: 1.00 lies within the interval
RANKS = (14, 27)  # of 40 sorted values: their median lies between these 96 times of 100
OBSERVE, ABORT = "observe", "abort"


def main() -> None:
    """Print the table."""
    with one_thread(), scratch_journal(), torch.no_grad():
        _print(_seconds_per_step())


def _seconds_per_step() -> dict[str, list[float]]:
    """Return what a step took in each round, by what was asked for."""
    model = _tiny_model()
    managers = {name: _manager_of(copy.deepcopy(model)) for name in (OBSERVE, ABORT)}
    probes = {name: _probe(name) for name in managers}
    for name, manager in managers.items():
        ContinuousWatcher(probes[name]).watch(manager)
    blocks = {name: _block_of(manager) for name, manager in managers.items()}
    for block in blocks.values():
        block()  # the first pays for allocations
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    for turn in range(ROUNDS):
        for name in (OBSERVE, ABORT) if turn % 2 else (ABORT, OBSERVE):
            seconds[name].append(blocks[name]())
            probes[name].flush()  # what is still on its way belongs to nobody's next block
    for probe in probes.values():
        probe.close()
    return seconds


def _probe(on_nan: str) -> NanProbe:
    with mock.patch.dict(os.environ, {"NANWATCH_ON_NAN": on_nan}):
        probe = NanProbe(runtime="transformers", replica=on_nan, can_abort=True)
    if probe.aborts != (on_nan == ABORT):
        raise RuntimeError(f"the probe for {on_nan} does something else")
    return probe


def _print(seconds: dict[str, list[float]]) -> None:
    pairs = list(zip(seconds[ABORT], seconds[OBSERVE], strict=True))
    ratio = _median([abort / observe for abort, observe in pairs])
    added = _median([(abort - observe) * 1e6 for abort, observe in pairs])
    print(f"abort against observe, no NaN, R={REQUESTS}, {ROUNDS} rounds, median and 95 % interval")
    for name, blocks in seconds.items():
        print(f"  {name:<10} {_median([each * 1e6 for each in blocks])} microseconds a step")
    verdict = "met" if GOAL.is_met_by(ratio.low) else "missed"
    print(
        f"  step-time ratio {ratio.mean:.4f} ({ratio.low:.4f} to {ratio.high:.4f}); {added} microseconds more"
    )
    print(f"  lower bound {ratio.low:.4f}, goal {GOAL}: {verdict}")


def _median(values: list[float]) -> Interval:
    low, high = (sorted(values)[rank - 1] for rank in RANKS)
    return Interval(statistics.median(values), low, high)


if __name__ == "__main__":
    main()
