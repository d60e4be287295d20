"""Fail-fast in a real vLLM: written before the raise, and an engine that neither hangs nor mixes up."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.engines.vllm.conftest import Run
from tests.seen import read

V2 = [
    pytest.mark.vllm_all,
    pytest.mark.skipif(find_spec("triton") is None, reason="the second runner needs triton's interpreter"),
]


@pytest.mark.parametrize(
    ("runner", "scheduling"),
    [
        ("v1", "sync"),
        ("v1", "async"),
        pytest.param("v2", "sync", marks=V2),
        pytest.param("v2", "async", marks=V2),
    ],
)
def test_generate_raises_the_clients_id_and_then_refuses(
    run: Run, tiny_model: Path, tmp_path: Path, runner: str, scheduling: str
) -> None:
    """VLLM alone would hang in the next generate(), or hand out the old requests' outputs."""
    first, second, third = run("stopping", str(tiny_model), runner, scheduling, NANWATCH_FAIL_FAST="1")
    assert (first["requests"], first["outputs"]) == ({"1": 7}, 0)
    assert first["error"] == "NaNs detected in logits: {'1': 7}"
    for later in (second, third):
        assert (later["requests"], later["outputs"]) == ({"1": 7}, 0)
        assert "this engine stopped at it in an earlier step" in later["error"]
        assert later["seconds"] < 30
    seen = read(tmp_path / "journal")
    assert [request.shown_id for request in seen.requests] == ["1"]
    assert (seen.totals.corrupted_requests, seen.totals.fail_fast_trips) == (1, 1)
