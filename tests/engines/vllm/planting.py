"""A plug-in for vLLM that plants NaNs in one exact row of the raw logits, in the model itself.

It knows a row's request from the scheduler's output and the batch, not from nanwatch. A plan says
    id      the request: a part of its internal id
    at      which of its sampled steps, from 1; a chunk of a prompt is one
    row     which of its rows in that step: 0, or a draft's
    prompt  instead of `at`: row of the one call that makes prompt logits; `row` is counted in it
It also notes what vLLM's own check says: num_nans_in_logits, as the scheduler is handed it.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any

VALUES = 7  # NaNs planted in a row: tokens 0 to 6, which masks like to hide


@dataclass
class Plan:
    """What is still to be planted, and what was seen."""

    wanted: list[dict[str, Any]] = field(default_factory=list)
    planted: list[int] = field(default_factory=list)  # in which step of the engine, from 1
    seen: dict[str, int] = field(default_factory=dict)  # sampled steps by internal id
    steps: int = 0  # sampled steps of the engine
    prompt_calls: int = 0
    blamed: dict[str, int] = field(default_factory=dict)  # by vLLM's own check


plan = Plan()
_now: dict[str, Any] = {}  # what is being executed


def register() -> None:
    """Called by vLLM in every process; the plan of a server comes in its environment."""
    if getattr(register, "done", False):
        return
    register.done = True  # type: ignore[attr-defined]
    plan.wanted += json.loads(os.environ.get("PLANTED", "[]"))
    if os.environ.get("PLANT_ASYNC"):
        _schedule_asynchronously()
    _plant_in_the_model()
    _know_the_batch_of_v1()
    _know_the_batch_of_v2()
    _note_what_vllm_blames()


def _schedule_asynchronously() -> None:
    """Undo what the CPU platform insists on: no asynchronous scheduling."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _plant_in_the_model() -> None:
    from vllm.model_executor.models.llama import LlamaForCausalLM

    original = LlamaForCausalLM.compute_logits

    def compute_logits(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits = original(self, *args, **kwargs)
        if logits is not None and "ids" in _now:
            _plant(logits, _now.pop("ids"))
        elif logits is not None and _now.get("scheduled"):
            _plant_in_prompt(logits)
        return logits

    LlamaForCausalLM.compute_logits = compute_logits


def _plant(logits: Any, ids: list[str]) -> None:
    """Plant in a step that is sampled from; `ids` in the order of the batch."""
    drafts = _now["scheduled"].scheduled_spec_decode_tokens
    plan.steps += 1
    row = 0
    for name in ids:
        plan.seen[name] = plan.seen.get(name, 0) + 1
        rows = len(drafts.get(name, ())) + 1
        for wanted in list(plan.wanted):
            if wanted["id"] in name and wanted.get("at") == plan.seen[name]:
                assert wanted["row"] < rows, (wanted, rows)
                _spoil(logits, row + wanted["row"], wanted)
        row += rows
    assert row == len(logits), (row, len(logits))


def _plant_in_prompt(logits: Any) -> None:
    plan.prompt_calls += 1
    for wanted in list(plan.wanted):
        if wanted.get("prompt") == plan.prompt_calls:
            _spoil(logits, wanted["row"], wanted)


def _spoil(logits: Any, row: int, wanted: dict[str, Any]) -> None:
    logits[row, :VALUES] = float("nan")
    plan.wanted.remove(wanted)
    plan.planted.append(plan.steps + (plan.prompt_calls if "prompt" in wanted else 0))


def _know_the_batch_of_v1() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner._update_states
    prepare = GPUModelRunner._prepare_inputs

    def update_states(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        _now["scheduled"] = scheduler_output
        return original(self, scheduler_output, *args, **kwargs)

    def prepare_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        _now["ids"] = list(self.input_batch.req_ids)
        return prepare(self, *args, **kwargs)

    GPUModelRunner._update_states = update_states
    GPUModelRunner._prepare_inputs = prepare_inputs


def _know_the_batch_of_v2() -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    execute, original = GPUModelRunner.execute_model, GPUModelRunner.sample

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        _now["scheduled"] = scheduler_output
        return execute(self, scheduler_output, *args, **kwargs)

    def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        if "_warmup" not in input_batch.req_ids[0]:
            _now["ids"] = list(input_batch.req_ids)
        return original(self, hidden_states, input_batch, grammar_output)

    GPUModelRunner.execute_model, GPUModelRunner.sample = execute_model, sample


def _note_what_vllm_blames() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    original = Scheduler.update_from_output

    def update_from_output(self: Any, scheduler_output: Any, output: Any) -> Any:
        for name, nans in (output.num_nans_in_logits or {}).items():
            if nans:
                plan.blamed[name] = plan.blamed.get(name, 0) + nans
        return original(self, scheduler_output, output)

    Scheduler.update_from_output = update_from_output
