"""A pooling model in a real vLLM: one row for each pooled output."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.engines.vllm.conftest import Run
from tests.seen import read

V2 = [
    pytest.mark.vllm_all,
    pytest.mark.skipif(find_spec("triton") is None, reason="the second runner needs triton's interpreter"),
]


@pytest.mark.parametrize("runner", ["v1", pytest.param("v2", marks=V2)])
def test_an_embedding_that_is_nan_is_charged_to_its_request(
    run: Run, tiny_model: Path, tmp_path: Path, runner: str
) -> None:
    """The second of three prompts; all 64 values of its embedding are NaN, which is one row."""
    outputs = run("pooling", str(tiny_model), runner)
    assert [output["nans"] for output in outputs] == [0, 64, 0]
    seen = read(tmp_path / "journal")
    assert [(request.shown_id, request.rows, request.values) for request in seen.requests] == [("1", 1, 64)]
    assert (seen.totals.requests, seen.totals.rows) == (3, 3)
