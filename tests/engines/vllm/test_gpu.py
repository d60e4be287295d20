"""On a GPU nothing of ours waits for it: not in `execute_model`, not in `sample_tokens`.

Not run yet: there was no GPU to run it on. torch raises at any call that synchronises, and a wait
for an event is refused by a patched `Event.synchronize`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanwatch import NanProbe
from nanwatch.engines.guard import Guard
from nanwatch.engines.vllm.output import Outlet
from nanwatch.engines.vllm.v2 import V2
from tests.engines.vllm.batches import Model, Second, logits, second_batch
from tests.engines.vllm.conftest import Run
from tests.engines.written import Written
from tests.seen import read

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@contextmanager
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def synchronize(_event: Any) -> None:
        raise AssertionError("somebody waits for an event")

    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda.Event, "synchronize", synchronize)
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_step_is_watched_without_waiting(monkeypatch: pytest.MonkeyPatch, written: Written) -> None:
    """Plain rows, rows whose owners only the device knows, and prompt rows."""
    with NanProbe(runtime="vllm", raises_later=True) as probe:
        guard = Guard("test", probe)
        calls = [logits(3, [1]).cuda(), logits(4, [2]).cuda(), logits(2).cuda(), logits(4, [0]).cuda()]
        plain = second_batch(["a", "b", "c"], [1, 1, 1])
        verified = second_batch(
            ["d", "e"],
            [2, 2],
            idx_mapping=torch.tensor([7, 2]).cuda(),
            expanded_idx_mapping=torch.tensor([7, 7, 2, 2]).cuda(),
        )
        runner = Second(Model(*calls), plain)
        runner.hidden_states = runner.hidden_states.cuda()
        V2(runner, Outlet(probe, guard), guard).install()
        runner.sample_tokens()  # the first step makes the pinned slots
        with nobody_waits(monkeypatch):
            runner.batch, runner.adaptive_verification = verified, object()
            runner.execute_model(SimpleNamespace(finished_req_ids={"a"}))
            runner.sample_tokens()
        assert set(written.corrupted(probe)) == {"b", "e"}


@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not importable here")
def test_vllms_own_check_for_waits_finds_none_of_ours(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    """VLLM_GPU_SYNC_CHECK=error raises in a step that waits; both runners, asynchronous scheduling."""
    for runner in ("0", "1"):
        checked = {"VLLM_GPU_SYNC_CHECK": "error", "VLLM_USE_V2_MODEL_RUNNER": runner}
        run("engine", str(tiny_model), "v1", "sync", **checked)
    assert read(tmp_path / "journal").totals.dropped_steps == {}
