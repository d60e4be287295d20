"""What vLLM's plug-in loader meets: nothing unless asked, never an exception, one warning if strange.

A package called vllm that holds next to nothing stands for a vLLM that nobody has seen yet.
"""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import nanwatch
from nanwatch.journal.reader import JournalReader

ROOT = Path(__file__).parents[3]
CALL = "from nanwatch.engines.vllm.registration import register; register(); register()"
WORKER = """
class WorkerWrapperBase:
    def init_device(self):
        self.done = True
        return "on its device"
"""


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A vLLM 99, without workers."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '99.0'")
    return tmp_path


def with_worker(place: Path, more: str = "") -> Path:
    """... and with a worker that has a device, and no model runner."""
    folder = place / "vllm" / "v1" / "worker"
    folder.mkdir(parents=True)
    (place / "vllm" / "v1" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "worker_base.py").write_text(WORKER + more)
    return place


def run(place: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "NANWATCH_JOURNAL": str(place / "journal")} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_vllm_finds_it_under_its_own_group() -> None:
    """What the project says of itself resolves; the wheel's own metadata is made of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (value,) = project["entry-points"]["vllm.general_plugins"].values()
    assert callable(EntryPoint("nanwatch", value, "vllm.general_plugins").load())


@pytest.mark.parametrize(
    "environment", [{}, {"NANWATCH_ENABLED": "0"}, {"NANWATCH_ENABLED": "off", "NANWATCH_ON_NAN": "observe"}]
)
def test_nothing_happens_unless_the_environment_asks(strange: Path, environment: dict[str, str]) -> None:
    code = f"{CALL}; import sys; print([name for name in ('torch', 'vllm') if name in sys.modules])"
    done = run(strange, code, **environment)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    "environment", [{"NANWATCH_ENABLED": "1"}, {"NANWATCH_FAIL_FAST": "1"}, {"NANWATCH_ON_NAN": "raise"}]
)
def test_a_vllm_without_the_worker_seam_is_told_in_one_warning(
    strange: Path, environment: dict[str, str]
) -> None:
    """Both versions, and what is missing; no exception, or vLLM would not start."""
    done = run(strange, f"import vllm; {CALL[: CALL.rindex(';')]}; print('it starts')", **environment)
    assert done.stdout == "it starts\n"
    assert done.stderr == (
        f"nanwatch {nanwatch.__version__} does not look at vllm 99.0: it has no vllm.v1.worker.worker_base."
        "WorkerWrapperBase.init_device (No module named 'vllm.v1'); the program runs on\n"
    )


def test_a_worker_that_is_strange_has_its_device_all_the_same(strange: Path) -> None:
    """What is asked of it later is not there: one error with its traceback, and it goes on."""
    code = f"""{CALL}
from vllm.v1.worker.worker_base import WorkerWrapperBase
worker = WorkerWrapperBase()
worker.worker = worker.vllm_config = None
print(worker.init_device(), worker.done)"""
    done = run(with_worker(strange), code, NANWATCH_ENABLED="1")
    assert done.stdout == "on its device True\n"
    assert done.stderr.count("does not look at vllm 99.0") == 1
    reader = JournalReader(strange / "journal")
    reader.poll()
    reader.close()
    (source,) = reader.sources
    assert (source.labels.runtime, source.active) == ("vllm", False)


def test_registering_twice_wraps_once(strange: Path) -> None:
    code = f"""{CALL}
from vllm.v1.worker.worker_base import WorkerWrapperBase
print(hasattr(WorkerWrapperBase.init_device.__wrapped__, '__wrapped__'))"""
    assert run(with_worker(strange), code, NANWATCH_ENABLED="1").stdout == "False\n"
