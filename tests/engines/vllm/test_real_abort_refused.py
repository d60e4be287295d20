"""Real configurations of vLLM in which `abort` was not verified: refused before anything is started."""

from pathlib import Path

import pytest

from tests.engines.vllm.conftest import Run

REFUSED = {
    "pipeline": "pipeline parallelism",
    "data": "data parallelism",
    "connector": "a KV connector or disaggregated prefill",
    "events": "KV cache events",
    "pooling": "pooling models",
    "two": "pipeline parallelism and KV cache events",
    "windowed": "a KV cache of SlidingWindowSpec; it was on full attention",
}


@pytest.mark.vllm_all
def test_each_mode_that_was_not_verified_is_refused_in_one_line(run: Run, tiny_model: Path) -> None:
    """By its name, with what to use instead; the plain one is taken."""
    said = {line["mode"]: line["said"] for line in run("refusals", str(tiny_model))}
    assert said.pop("verified") == ""
    assert said == {
        mode: f"SettingsError: NANWATCH_ON_NAN='abort' cannot be had here: it was not verified with {what}; "
        "use observe or raise"
        for mode, what in REFUSED.items()
    }
