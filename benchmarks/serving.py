"""What nanwatch costs continuous batching of Transformers: `python -m benchmarks.serving`.

    R = requests in the batch, one row each
One engine of one tiny model (batching.py) serves as it is, watched as `nanwatch run` does it, with a blocking
`isnan().sum().cpu()` on the logits of each step, and as it is once more, which tells how small a difference
can be seen. Only what was measured in one round is compared; of the 40 rounds the mean and its 95 %
interval are shown.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from benchmarks.batching import REQUESTS, ROUNDS, Engine, Interval, take_turns
from benchmarks.measure import AtMost, one_thread
from benchmarks.scratch import scratch_journal
from nanwatch import NanProbe

GOAL = AtMost(2)  # per cent, for the upper bound of the interval

PLAIN, WATCHED, BLOCKING, AGAIN = "as it is", "nanwatch", "isnan().sum().cpu()", "as it is, again"


def main() -> None:
    """Print the table."""
    with one_thread(), scratch_journal(), torch.no_grad(), NanProbe(runtime="transformers") as probe:
        _print(_seconds_per_step(probe))


def _seconds_per_step(probe: NanProbe) -> dict[str, list[float]]:
    """Return what a step took in each round, by contestant."""
    engine = Engine(probe)

    @contextmanager
    def plain() -> Iterator[None]:
        """Nobody looks; what nanwatch leaves behind is one more row in the engine's buffer of tokens."""
        for owner, name, _ in engine.replaced:
            del owner[name]
        try:
            yield
        finally:
            for owner, name, method in engine.replaced:
                owner[name] = method

    @contextmanager
    def blocking() -> Iterator[None]:
        hook = engine.model.register_forward_hook(lambda _module, _args, output: _count_and_wait(output))
        try:
            with plain():
                yield
        finally:
            hook.remove()

    return take_turns(engine, {PLAIN: plain, WATCHED: nullcontext, BLOCKING: blocking, AGAIN: plain})


def _count_and_wait(output: Any) -> None:
    torch.isnan(output.logits).sum().cpu().item()


def _print(seconds: dict[str, list[float]]) -> None:
    print(f"continuous batching of a tiny model, R={REQUESTS}, {ROUNDS} rounds, mean and 95 % interval")
    for name, blocks in seconds.items():
        tokens = Interval.of([REQUESTS / each for each in blocks])
        print(f"  {name:<20} {tokens} tokens/s, {statistics.fmean(blocks) * 1e6:.0f} microseconds a step")
    for name in (WATCHED, BLOCKING, AGAIN):
        pairs = list(zip(seconds[name], seconds[PLAIN], strict=True))
        loss = Interval.of([100 * (1 - plain / each) for each, plain in pairs])
        added = Interval.of([(each - plain) * 1e6 for each, plain in pairs])
        print(f"  {name:<20} {loss} % fewer tokens/s, {added} microseconds a step more")
        if name is WATCHED:
            verdict = "met" if GOAL.is_met_by(loss.high) else "missed"
            print(f"  {'':<20} upper bound {loss.high:.3g} %, goal {GOAL}: {verdict}")


if __name__ == "__main__":
    main()
