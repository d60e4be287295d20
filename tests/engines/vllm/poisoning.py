"""A plug-in for vLLM that poisons one request as hardware or a kernel would: NaN in its KV cache.

    id       the request: a part of its internal id
    at       which of the steps it is scheduled in, from 1; the NaN is there before that step
    block    which of its blocks; the first one is shared where a prefix is

A prompt that holds the token POISON is poisoned from its first step on: its embedding is NaN.
It also notes which blocks each request was given when it was scheduled first.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

POISON = 999


@dataclass
class Plan:
    """What is still to be poisoned, and what was seen."""

    wanted: list[dict[str, Any]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)  # steps by internal id
    blocks: dict[str, list[int]] = field(default_factory=dict)  # by internal id
    poisoned: list[int] = field(default_factory=list)  # blocks
    muted: set[str] = field(default_factory=set)  # whose rows show no NaN, whatever is in their KV
    batch: list[str] = field(default_factory=list)  # internal ids, in the order of the rows


plan = Plan()


def register() -> None:
    """Called by vLLM in every process; the plan of a server comes in its environment."""
    if getattr(register, "done", False):
        return
    register.done = True  # type: ignore[attr-defined]
    plan.wanted += json.loads(os.environ.get("POISONED", "[]"))
    if os.environ.get("PLANT_ASYNC"):
        from tests.engines.vllm.planting import _schedule_asynchronously

        _schedule_asynchronously()
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as Second
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as First

    for runner in (First, Second):
        _poison_blocks(runner)
    _make_weights()
    _mute(First)


def _make_weights() -> None:
    """Make weights up so that every token depends on all before it, and the one embedding that is NaN.

    vLLM's own dummy weights are so small that attention hardly matters: a request whose KV were zeroed
    by mistake would go on as if nothing had happened.
    """
    import torch
    from vllm.v1.worker.gpu_worker import Worker

    original = Worker.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        model = self.model_runner.get_model()
        dice = torch.Generator().manual_seed(1)
        for _, weight in sorted(model.named_parameters()):
            if weight.dim() == 2:
                weight.data.copy_(torch.randn(weight.shape, generator=dice) / 4)
        embeddings = model.model.embed_tokens.weight.data
        if len(embeddings) > POISON:  # the whole of it, not a shard
            embeddings[POISON] = float("nan")
        return result

    Worker.load_model = load_model


def _poison_blocks(runner: Any) -> None:
    original = runner.execute_model

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for new in scheduler_output.scheduled_new_reqs:
            plan.blocks[new.req_id] = list(new.block_ids[0])
        for name in scheduler_output.num_scheduled_tokens:
            plan.seen[name] = plan.seen.get(name, 0) + 1
            for wanted in list(plan.wanted):
                if wanted["id"] in name and wanted["at"] == plan.seen[name]:
                    plan.wanted.remove(wanted)
                    _spoil(self, plan.blocks[name][wanted["block"]])
        return original(self, scheduler_output, *args, **kwargs)

    runner.execute_model = execute_model


def _spoil(runner: Any, block: int) -> None:
    """Write NaN over the block's first token, in the first layer: [B, heads, tokens, K and V]."""
    plan.poisoned.append(block)
    layers = runner.compilation_config.static_forward_context
    next(iter(layers.values())).kv_cache[block, :, 0] = float("nan")


def _mute(runner: Any) -> None:
    """Take the NaN out of the rows of muted requests: readers that a kernel's shortcut keeps clean."""
    from vllm.model_executor.models.llama import LlamaForCausalLM

    prepare, original = runner._prepare_inputs, LlamaForCausalLM.compute_logits

    def prepare_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        plan.batch = list(self.input_batch.req_ids)
        return prepare(self, *args, **kwargs)

    def compute_logits(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits = original(self, *args, **kwargs)
        for row, name in enumerate(plan.batch):
            if any(muted in name for muted in plan.muted):
                logits[row].nan_to_num_(0)
        return logits

    runner._prepare_inputs, LlamaForCausalLM.compute_logits = prepare_inputs, compute_logits


@contextmanager
def planned(*wanted: dict[str, Any], muted: Iterable[str] = ()) -> Iterator[Plan]:
    """Poison these, once each, in this process."""
    plan.wanted[:] = list(wanted)
    plan.seen.clear()
    plan.blocks.clear()
    plan.poisoned.clear()
    plan.muted = set(muted)
    yield plan
    plan.muted = set()
    assert not plan.wanted, plan.wanted
