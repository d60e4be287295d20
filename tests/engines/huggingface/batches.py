"""Runs continuous batching over a tiny model, step by step, with NaNs planted in exact rows.

Everything is the real engine. On a CPU it has no asynchronous mode, so `two_buffers` stands for what that
takes from a GPU: streams, events, and a copy to the host that has not happened until somebody waited.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import (
    continuous_api,
    input_outputs,
    model_runner,
    offloading_manager,
)

from tests.engines.huggingface.tiny import EOS, LIKED, PAD

NAN = float("nan")
SECONDS = 60.0


@dataclass(frozen=True)
class Prompt:
    """One request: its tokens, and how many new ones it wants."""

    tokens: Sequence[int]
    new_tokens: int = 4
    streaming: bool = False


@dataclass(frozen=True)
class Forwards:
    """What happens at which forward of the model's head, counted from 1.

    `nan` maps (forward, row of its logits) to how many values become NaN; `call` is what else happens
    while that forward runs, in the engine's thread.
    """

    nan: Mapping[tuple[int, int], int] = field(default_factory=dict)
    call: Mapping[int, Callable[[], object]] = field(default_factory=dict)
    likes_liked: bool = True  # whether LIKED is what all other logits stand for
    rows: list[int] = field(default_factory=list)  # filled: the rows of each forward


@contextmanager
def following(model: Any, plan: Forwards) -> Iterator[None]:
    """Let the plan change the raw logits [1, R, V] that the head makes."""

    def write(_module: Any, _args: Any, logits: Tensor) -> Tensor:
        plan.rows.append(logits.shape[1])
        forward = len(plan.rows)
        if plan.likes_liked:
            logits[..., EOS] = -100.0
            logits[..., LIKED] += 10.0
        for (at, row), values in plan.nan.items():
            if at == forward:
                logits[0, row, :values] = NAN
        plan.call.get(forward, lambda: None)()
        return logits

    hook = model.get_output_embeddings().register_forward_hook(write)
    try:
        yield
    finally:
        hook.remove()


def settings(**kwargs: Any) -> ContinuousBatchingConfig:
    """Return settings that make a cache at once: without num_blocks a CPU takes seconds to size it."""
    small = {"num_blocks": 64, "page_size": 4, "max_batch_tokens": 64, "max_requests_per_batch": 8}
    return ContinuousBatchingConfig(**{**small, "allow_block_sharing": False, "seed": 0, **kwargs})


def wishes(**kwargs: Any) -> GenerationConfig:
    """Return a greedy generation config without an end token."""
    return GenerationConfig(  # type: ignore[no-untyped-call]
        **{"do_sample": False, "eos_token_id": -1, "pad_token_id": PAD, **kwargs}
    )


def manager_of(model: Any, *, generation: GenerationConfig | None = None, **kwargs: Any) -> Any:
    """Return a manager that was not started: what is added now is in its first batch, in this order."""
    return model.init_continuous_batching(
        generation_config=generation or wishes(), continuous_batching_config=settings(**kwargs)
    )


def add(manager: Any, prompts: Mapping[str, Prompt]) -> None:
    """Add requests under their ids."""
    for request_id, prompt in prompts.items():
        manager.add_request(
            list(prompt.tokens),
            request_id=request_id,
            max_new_tokens=prompt.new_tokens,
            streaming=prompt.streaming,
        )


def run_to_end(manager: Any, outputs: int) -> dict[str, Any]:
    """Start the manager, and return so many last outputs by their ids, or fewer if its thread ended."""
    results: dict[str, Any] = {}
    manager.start()
    try:
        while len(results) < outputs:
            output = manager.get_result(timeout=0.2)
            if output is None and not manager.is_running():
                break
            if output is not None and output.is_finished():
                results[output.request_id] = output
    finally:
        manager.stop(block=True, timeout=SECONDS)
    return results


class _Stream:
    """Stands for a CUDA stream whose work is done by the time that it was enqueued."""

    def record_event(self, _event: Any) -> None: ...
    def wait_event(self, _event: Any) -> None: ...
    def synchronize(self) -> None: ...


class LateCopy:
    """Stands for the event after a copy to the host: the copy happens when somebody waits for it."""

    def __init__(self) -> None:
        self._copies: list[Callable[[], object]] = []

    def enqueue(self, copy: Callable[[], object]) -> None:
        self._copies.append(copy)

    def synchronize(self) -> None:
        while self._copies:
            self._copies.pop(0)()


@contextmanager
def two_buffers() -> Iterator[None]:
    """Let the engine's asynchronous mode run on a CPU."""

    def transfer(pair: Any, _stream: Any) -> None:
        if not isinstance(pair.d2h_over, LateCopy):
            pair.d2h_over = LateCopy()
        pair.d2h_over.enqueue(lambda: pair.host_io.output_ids.copy_(pair.device_io.output_ids))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_outputs.ContinuousBatchingAsyncIOs, "_supported_device_types", ("cpu",))
        patch.setattr(input_outputs.HostDeviceIOPair, "transfer_outputs_d2h", transfer)
        patch.setattr(input_outputs, "create_device_stream", lambda _device: _Stream())
        for module in (input_outputs, model_runner, offloading_manager, continuous_api):
            patch.setattr(module, "stream_context", lambda _stream: nullcontext())
        yield


@contextmanager
def pageable_swap() -> Iterator[None]:
    """Let requests be moved to the host's memory without a device that could pin it."""

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def empty(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
            return torch.empty(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offloading_manager, "torch", _Torch())
        yield


@contextmanager
def quick_collections() -> Iterator[None]:
    """Keep what is imported out of the garbage collections that the engine makes at each start and stop."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
