"""The continuous batching of Transformers as it is measured: one engine, whose steps are looked at in turns.

A step is the engine's Python and little else, as the model is tiny: whatever is added shows. Copies of one
model, one for each way, differ by half a per cent among themselves, as they lie elsewhere in memory; and
the machine is faster in one second than in the next. So one engine takes turns of a few steps each, in mixed
order. A round is a few turns of each way, for which the step stands that a quarter of its steps beat: other
programs only ever slow a step down, and the first step of a turn pays for what the last turn left behind.
What is measured is what the engine's thread pays: nanwatch's recorder wakes four times a second, in anybody's
turn.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from benchmarks.measure import orders
from nanwatch import NanProbe
from nanwatch.engines.huggingface.continuous import ContinuousWatcher
from nanwatch.engines.huggingface.continuous.processor import WatchedProcessor
from nanwatch.engines.huggingface.replaced_method import ReplacedMethod

ROUNDS, TURNS, STEPS = 40, 12, 8
REQUESTS, NEW_TOKENS, PROMPT = 8, 96, 16
T_OF_39 = 2.023  # Student's t of 39 degrees of freedom, 95 %, two-sided

Way = Callable[[], AbstractContextManager[None]]


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


class Engine:
    """An engine of one tiny model that serves REQUESTS at a time, watched by a probe.

    Attributes:
        model: what it runs.
        replaced: all that nanwatch put in place of the engine's methods: (attributes, name, it).
    """

    def __init__(self, probe: NanProbe) -> None:
        self.model = _tiny_model()
        self._manager = _manager_of(self.model)
        ContinuousWatcher(probe).watch(self._manager)
        self._manager.warmup()
        self._manager.current_batch = 0
        self.replaced = _replaced_in(self._manager)
        if self._manager.batch_processor.use_async_batching:
            raise RuntimeError("the steps of asynchronous batching overlap: they cannot be timed one by one")

    def watched(self) -> WatchedProcessor:
        """Return what nanwatch holds the engine's batch processor by."""
        (around,) = (vars(method)["_around"] for _, name, method in self.replaced if name == "compute_batch")
        watched: WatchedProcessor = around.__self__
        return watched

    def step(self) -> float:
        """Take one step; returns its seconds."""
        manager = self._manager
        if not manager.batch_processor.has_pending_requests():
            for number in range(REQUESTS):
                manager.add_request([5 + number] * PROMPT, max_new_tokens=NEW_TOKENS, eos_token_id=-1)
        start = time.perf_counter()
        manager._generation_loop_body(manager.batch_processor, bootstrapping=False)  # noqa: SLF001
        return time.perf_counter() - start


def take_turns(engine: Engine, ways: Mapping[str, Way]) -> dict[str, list[float]]:
    """Return what a step took in each round, by the way in which it was looked at."""
    mixed = orders(list(ways), (ROUNDS + 1) * TURNS)
    rounds = [_round(engine, ways, [next(mixed) for _ in range(TURNS)]) for _ in range(ROUNDS + 1)]
    return {name: [one[name] for one in rounds[1:]] for name in ways}  # the first pays for allocations


def _round(engine: Engine, ways: Mapping[str, Way], turns: list[list[str]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for name in (name for turn in turns for name in turn):
        with ways[name]():
            seconds[name] += [engine.step() for _ in range(STEPS)]
    return {name: statistics.quantiles(taken, n=4)[0] for name, taken in seconds.items()}


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


def _replaced_in(manager: Any) -> list[tuple[dict[str, Any], str, ReplacedMethod]]:
    processor = manager.batch_processor
    parts = (
        processor,
        processor.model_runner,
        processor.inputs_and_outputs,
        processor.scheduler,
        processor.cache,
        manager.output_router,
    )
    found = [(vars(part), name, method) for part in parts for name, method in vars(part).items()]
    return [one for one in found if isinstance(one[2], ReplacedMethod)]
