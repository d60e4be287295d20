"""Continuous batching as a service that goes on: waves of requests, and what they leave in its cache."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from tests.engines.huggingface.batches import Prompt, add, manager_of, two_buffers
from tests.engines.huggingface.tiny import POISON, tiny_llama

SECONDS = 60.0


def talkative_llama() -> Any:
    """Return a model whose answers differ from prompt to prompt, and hold neither 0, NaN's token, nor POISON.

    POISON is a token like any other, until `poisoned` says otherwise.
    """
    model = tiny_llama()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(6.0)
        model.get_input_embeddings().weight[POISON] = 0.5
        model.get_output_embeddings().weight[[0, POISON]] = 0.0
    return model


@contextmanager
def poisoned(model: Any) -> Iterator[None]:
    """Let the embedding of POISON be NaN."""
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        before = weight[POISON].clone()
        weight[POISON] = float("nan")
        try:
            yield
        finally:
            weight[POISON] = before


class Session:
    """A manager that runs."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.streamed: dict[str, list[Any]] = {}  # outputs before the last one, by request

    def send(self, prompts: Mapping[str, Prompt]) -> None:
        add(self.manager, prompts)

    def results(self, outputs: int) -> dict[str, Any]:
        """Return so many last outputs; fewer where the engine's thread ended."""
        ended: dict[str, Any] = {}
        deadline = time.monotonic() + SECONDS
        while len(ended) < outputs and time.monotonic() < deadline:
            output = self.manager.get_result(timeout=0.2)
            if output is None and not self.manager.is_running():
                break
            if output is not None and output.is_finished():
                ended[output.request_id] = output
            elif output is not None:
                self.streamed.setdefault(output.request_id, []).append(output)
        return ended

    def ask(self, prompts: Mapping[str, Prompt]) -> dict[str, Any]:
        """Send requests, and wait for all of their last outputs."""
        self.send(prompts)
        return self.results(len(prompts))

    @property
    def allocator(self) -> Any:
        (allocator,) = self.manager.batch_processor.cache.cache_allocators.values()
        return allocator

    def cache_is_finite(self) -> bool:
        view = self.allocator._copy_view.view(self.allocator.cache_dtype)
        return bool(view.isfinite().all())

    def all_blocks_are_back(self) -> bool:
        """Whether nobody holds a block: each is free, kept for its prefix alone, or in a free sector."""
        held = self.allocator
        free = held.pool.count_free_blocks(held.index) + held.pool.num_free_sectors * held.blocks_per_sector
        nobody = not held.block_table and not held.ledger.shared_ref_counts
        return nobody and free + len(held.ledger.cached_blocks) == held.num_blocks


@contextmanager
def session(model: Any, *, is_async: bool = False, prepare: Any = None, **how: Any) -> Iterator[Session]:
    """Run a manager; `prepare` is called with it before it is started, so that a first batch is known."""
    with two_buffers() if is_async else nullcontext():
        manager = manager_of(model, use_async_batching=is_async, **how)
        if prepare is not None:
            prepare(manager)
        manager.start()
        try:
            yield Session(manager)
        finally:
            manager.stop(block=True, timeout=SECONDS, hard_stop=True)  # a failing test ends, too


def alone(model: Any, prompts: Mapping[str, Sequence[int]], new_tokens: int) -> dict[str, list[int]]:
    """Return what each prompt is answered where nobody else is in the batch."""
    answers: dict[str, list[int]] = {}
    with session(model) as running:
        for name, tokens in prompts.items():
            answers |= {name: running.ask({name: Prompt(tokens, new_tokens)})[name].generated_tokens}
    return answers
