"""What the tests of vLLM share: is it there, a tiny model, and programs that run it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nanwatch.engines.vllm.containment.verified import VERSIONS

ROOT = Path(__file__).parents[3]
RUN_SECONDS = 500  # some 30 on a quiet machine

HERE = Path(__file__).parent
NEEDS_VLLM = {path.name for path in HERE.glob("test_real_*.py")}

Run = Callable[..., list[dict[str, Any]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what runs a real vLLM where there is none: it lives in an environment of its own."""
    if find_spec("vllm") is not None:
        _skip_abort_where_it_is_refused(items)
        return
    skip = pytest.mark.skip(reason="vllm is not importable here: make test-vllm runs this")
    for item in items:
        if item.path.parent == HERE and item.path.name in NEEDS_VLLM:
            item.add_marker(skip)


def _skip_abort_where_it_is_refused(items: list[pytest.Item]) -> None:
    here = version("vllm").partition("+")[0]
    skip = pytest.mark.skip(reason=f"abort refuses vLLM {here}: test_abort_refused.py")
    for item in items:
        if here not in VERSIONS and item.path.name.startswith(("test_real_spared", "test_real_abort")):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama."""
    from tests.engines.vllm.tiny import write_model

    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program of this folder; returns the JSON lines that it printed."""

    def run(program: str, *arguments: str, status: int = 0, **environment: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.engines.vllm.{program}", *arguments],
            cwd=ROOT,
            env=_environment(tmp_path / "journal") | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.returncode == status, f"status {done.returncode}: {done.stderr[-3000:]}"
        # A log line of another thread may stand between a result and its newline.
        return [json.JSONDecoder().raw_decode(line)[0] for line in lines]

    return run


def _environment(journal: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "NANWATCH_ENABLED": "1",
        "NANWATCH_JOURNAL": str(journal),
    }
