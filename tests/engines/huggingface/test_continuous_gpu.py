"""Continuous batching on a GPU: counts that ride in captured graphs, and outlive a device that dies of NaN.

The CPU's tests hold the order of calls; here the engine captures, replays and copies for itself.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nanwatch
from tests.engines.huggingface.batches import Prompt, add, manager_of
from tests.engines.huggingface.tiny import POISON, V, tiny_llama
from tests.engines.written import Written
from tests.seen import read

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[3]
CLEAN, SICK = [7, 8, 9], [7, POISON, 9]


def on_gpu() -> Any:
    """Return the tiny model on the GPU; it never says the poisoned token, nor 0 without NaN."""
    model = tiny_llama()
    with torch.no_grad():
        model.get_output_embeddings().weight[[0, POISON]] = 0.0
    return model.to("cuda")


@pytest.mark.parametrize("is_async", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("has_graphs", [False, True], ids=["eager", "captured"])
def test_captured_or_not_the_corrupted_are_those_whose_answers_are_nan(
    *, has_graphs: bool, is_async: bool, written: Written
) -> None:
    """One session in waves: graphs captured over a NaN are replayed for clean steps, and the other way."""
    model = on_gpu()
    waves = [{"a": CLEAN}, {"b": SICK}, {"c": CLEAN, "d": CLEAN}, {"e": SICK, "f": CLEAN}, {"g": CLEAN}]
    answered: dict[str, list[int]] = {}
    with nanwatch.watch_generate(model) as handle:
        manager = manager_of(
            model, use_cuda_graph=has_graphs, use_async_batching=is_async, auto_switch_to_flash=False
        )
        manager.warmup()
        manager.start()
        for wave in waves:
            add(manager, {name: Prompt(tokens, new_tokens=8) for name, tokens in wave.items()})
            for _ in wave:
                output = manager.get_result(timeout=60)
                answered[output.request_id] = output.generated_tokens
        manager.stop(block=True, timeout=60)
        totals, found = written.report(handle.probe)
    expected = {name for name, tokens in answered.items() if 0 in tokens}
    assert {"b", "e"} <= expected
    assert not {"a", "g"} & expected
    assert set(found) == expected
    assert (totals.requests, totals.dropped_steps) == (7, {})
    assert all(request.values == V * request.rows for request in found.values())


DIES = """
import sys
import nanwatch
from tests.engines.huggingface.batches import Prompt, add, manager_of, run_to_end, wishes
from tests.engines.huggingface.test_continuous_gpu import SICK, on_gpu

model = on_gpu()
handle = nanwatch.watch_generate(model)
how = {"use_cuda_graph": "graphs" in sys.argv, "use_async_batching": "async" in sys.argv}
manager = manager_of(model, generation=wishes(do_sample=True), auto_switch_to_flash=False, **how)
add(manager, {"b": Prompt(SICK)})
print(run_to_end(manager, 1)["b"].error)
handle.probe.flush()
"""


@pytest.mark.parametrize("how", [[], ["graphs"], ["async"], ["graphs", "async"]], ids=" and ".join)
def test_what_sampling_killed_the_device_with_is_written(how: list[str], written: Written) -> None:
    """Sampling asserts on NaN in the device, and nothing can be asked of its context any more."""
    done = subprocess.run(
        [sys.executable, "-c", DIES, *how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "hooks")])},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "assert" in done.stdout + done.stderr
    assert read(written.folder).ids == ["b"]
