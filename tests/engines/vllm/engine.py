"""One vLLM engine in this process, driven step by step through the cells of one configuration.

    python -m tests.engines.vllm.engine FOLDER v1|v2 sync|async [speculative]

A program of its own for each configuration: vLLM takes its environment when it is imported. It
prints one JSON line a cell: what nanwatch wrote, and what vLLM's own counter says.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.engines.vllm import in_process

COUNTER = "vllm:corrupted_requests"


def build(folder: Path, model_runner: str, scheduling: str, **more: Any) -> Any:
    """Return an LLM that takes few tokens a step, and in which NaNs can be planted."""
    from tests.engines.vllm.cells import TOKENS_A_STEP

    options = {"max_num_batched_tokens": TOKENS_A_STEP, "enable_prefix_caching": False}
    return in_process.build(folder, model_runner, scheduling, "planting", **options | more)


def run_cell(llm: Any, cell: Any, runner: str) -> dict[str, Any]:
    """Run one cell on an idle engine."""
    from tests.engines.vllm.planting import plan

    plan.wanted[:] = [_resolved(cell.plant, runner)]
    plan.planted.clear()
    plan.seen.clear()
    plan.blamed.clear()
    plan.prompt_calls = 0
    steps_before, counted_before = plan.steps, _own_counter(llm)
    _drive(llm, cell)
    return {
        "cell": cell.name,
        "planted": list(plan.planted),
        "steps_before": steps_before,
        "steps": plan.steps - steps_before,
        "vllm_counted": _own_counter(llm) - counted_before,
        "vllm_blamed": sorted(plan.blamed),
    }


def _resolved(plant: dict[str, Any], runner: str) -> dict[str, Any]:
    if "prompt" not in plant:
        return dict(plant)
    call, row = plant["prompt"][runner]
    return {"id": plant["id"], "prompt": call, "row": row}


def _drive(llm: Any, cell: Any) -> None:
    """Step until all is done; requests come, and the victim goes, between steps."""
    engine = llm.llm_engine
    waiting = list(cell.requests)
    done = 0
    while waiting or engine.has_unfinished_requests():
        for request in [request for request in waiting if request.after <= done]:
            waiting.remove(request)
            _add(engine, request)
        engine.step()
        done += 1
        if done == cell.abort_after:
            engine.abort_request(["victim"])
        assert done < 200, "the engine does not come to an end"


def _add(engine: Any, request: Any) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = dict(request.params)
    if "regex" in params:
        params["structured_outputs"] = StructuredOutputsParams(regex=params.pop("regex"))
    usual = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
    prompt = {"prompt_token_ids": list(range(10, 10 + request.prompt))}
    engine.add_request(request.name, prompt, SamplingParams(**usual | params))


def _own_counter(llm: Any) -> int:
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name.startswith(COUNTER))


def cells(*, speculative: bool) -> Iterator[Any]:
    """Yield the cells of one configuration."""
    from tests.engines.vllm.cells import CELLS

    yield from (cell for cell in CELLS if cell.speculative == speculative)


def main(folder: str, runner: str, scheduling: str, *more: str) -> None:
    """Run every cell of a configuration."""
    speculative = "speculative" in more
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    llm = build(Path(folder), runner, scheduling, **({"speculative_config": ngram} if speculative else {}))
    for cell in cells(speculative=speculative):
        print(json.dumps(run_cell(llm, cell, runner)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
