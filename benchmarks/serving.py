"""What nanwatch costs continuous batching of Transformers: `python -m benchmarks.serving`.

    R = requests in the batch, one row each
Three copies of one tiny model serve the same requests with the engine's own loop, in turns: as it is,
watched as `nanwatch run` does it, and with a blocking `isnan().sum().cpu()` on the logits of each step. The
model is so small that a step is the engine's Python and little else, so that whatever is added shows. A
round is one block of each, and the step that a quarter of its steps beat stands for a block: other programs
on the machine only ever slow a step down. Only blocks of one round are compared; of the 40 rounds the mean
and its 95 % interval are shown.
"""

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from benchmarks.measure import AtMost, one_thread
from benchmarks.scratch import scratch_journal
from nanwatch import NanProbe
from nanwatch.engines.huggingface.continuous import ContinuousWatcher

ROUNDS = 40
REQUESTS, NEW_TOKENS, PROMPT = 8, 96, 16
GOAL = AtMost(2)  # per cent, for the upper bound of the interval
T_OF_39 = 2.023  # Student's t of 39 degrees of freedom, 95 %, two-sided

PLAIN, WATCHED, BLOCKING = "as it is", "nanwatch", "isnan().sum().cpu()"


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Interval":
        """Take one value of each of the ROUNDS rounds."""
        mean, half = statistics.fmean(values), T_OF_39 * statistics.stdev(values) / len(values) ** 0.5
        return cls(mean, mean - half, mean + half)

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def main() -> None:
    """Print the table."""
    with one_thread(), scratch_journal(), torch.no_grad():
        _print(_seconds_per_step())


def _seconds_per_step() -> dict[str, list[float]]:
    """Return what a step took in each round, by contestant."""
    model = _tiny_model()
    engines = {name: copy.deepcopy(model) for name in (PLAIN, WATCHED, BLOCKING)}
    engines[BLOCKING].register_forward_hook(lambda _module, _args, output: _count_and_wait(output))
    managers = {name: _manager_of(engine) for name, engine in engines.items()}
    with NanProbe(runtime="transformers") as probe:
        ContinuousWatcher(probe).watch(managers[WATCHED])
        blocks = {name: _block_of(manager) for name, manager in managers.items()}
        for block in blocks.values():
            block()  # the first pays for allocations
        seconds: dict[str, list[float]] = {name: [] for name in blocks}
        names = list(blocks)
        for leader in range(ROUNDS):
            for place in range(len(names)):
                name = names[(leader + place) % len(names)]
                seconds[name].append(blocks[name]())
            probe.flush()  # what is still on its way belongs to nobody's next block
    return seconds


def _count_and_wait(output: Any) -> None:
    torch.isnan(output.logits).sum().cpu().item()


def _tiny_model() -> Any:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def _manager_of(model: Any) -> Any:
    return model.init_continuous_batching(
        generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, page_size=16, max_batch_tokens=256, max_requests_per_batch=REQUESTS
        ),
    )


def _block_of(manager: Any) -> Callable[[], float]:
    """Return what serves all requests once, and says the first quartile of the seconds of its steps."""
    manager.warmup()
    manager.current_batch = 0

    def block() -> float:
        for number in range(REQUESTS):
            manager.add_request([5 + number] * PROMPT, max_new_tokens=NEW_TOKENS, eos_token_id=-1)
        seconds = [_seconds_of_a_step(manager)]
        while manager.batch_processor.has_pending_requests():
            seconds.append(_seconds_of_a_step(manager))
        return statistics.quantiles(seconds, n=4)[0]

    return block


def _seconds_of_a_step(manager: Any) -> float:
    start = time.perf_counter()
    manager._generation_loop_body(manager.batch_processor, bootstrapping=False)  # noqa: SLF001
    return time.perf_counter() - start


def _print(seconds: dict[str, list[float]]) -> None:
    print(f"continuous batching of a tiny model, R={REQUESTS}, {ROUNDS} rounds, mean and 95 % interval")
    for name, blocks in seconds.items():
        tokens = Interval.of([REQUESTS / each for each in blocks])
        print(f"  {name:<20} {tokens} tokens/s, {statistics.fmean(blocks) * 1e6:.0f} microseconds a step")
    for name in (WATCHED, BLOCKING):
        pairs = list(zip(seconds[name], seconds[PLAIN], strict=True))
        loss = Interval.of([100 * (1 - plain / each) for each, plain in pairs])
        added = Interval.of([(each - plain) * 1e6 for each, plain in pairs])
        print(f"  {name:<20} {loss} % fewer tokens/s, {added} microseconds a step more")
        if name is WATCHED:
            verdict = "met" if GOAL.is_met_by(loss.high) else "missed"
            print(f"  {'':<20} upper bound {loss.high:.3g} %, goal {GOAL}: {verdict}")


if __name__ == "__main__":
    main()
