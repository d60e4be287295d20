"""What ships: the wheel, in a fresh environment that has no torch."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from nanwatch import NanProbe

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and its extra `sidecar`, nothing else."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[sidecar]"], check=True)
    return folder


def test_the_wheel_holds_both_packages_and_nothing_else_of_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"nanwatch", "nanwatch_sidecar"}
    assert {"nanwatch/py.typed", "nanwatch_sidecar/py.typed"} <= set(names)
    assert not [name for name in names if "tests" in name.split("/") or Path(name).name.startswith("test_")]


def test_installing_it_moves_nothing_in_the_engines_environment(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    needed = [line for line in text.splitlines() if line.startswith("Requires-Dist:")]
    assert needed
    assert all("extra ==" in line for line in needed)


def test_without_torch_the_sidecar_serves_what_an_engine_with_torch_wrote(
    environment: Path, journal: Path
) -> None:
    installed = subprocess.run(
        [str(environment / "bin" / "python"), "-c", "import torch"], check=False, capture_output=True
    )
    assert installed.returncode != 0
    with NanProbe() as probe:
        probe.observe(torch.full((1, 4), torch.nan), ["req-7"]).result()
        with _sidecar(environment, journal) as url:
            assert 'corrupted_requests_total{engine="0"' in httpx.get(url + "/metrics").text
            listed = httpx.get(url + "/v1/corrupted-requests").json()
            assert "req-7" in str(listed)


def test_without_torch_status_runs_and_the_demo_says_what_to_install(
    environment: Path, journal: Path
) -> None:
    command = str(environment / "bin" / "nanwatch")
    status = subprocess.run([command, "status"], check=False, capture_output=True, text=True)
    assert (status.returncode, status.stdout.splitlines()[0]) == (1, f"journal {journal}")
    demo = subprocess.run([command, "demo"], check=False, capture_output=True, text=True)
    assert demo.returncode == 2
    assert "pip install '.[demo,sidecar]' in nanwatch's folder" in demo.stderr


@contextmanager
def _sidecar(environment: Path, journal: Path) -> Iterator[str]:
    command = [str(environment / "bin" / "nanwatch"), "sidecar", "--listen", "127.0.0.1:0"]
    given = {**os.environ, "NANWATCH_JOURNAL": str(journal)}
    with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r"http://\S+:\d+", line)
            assert found is not None, line
            yield found[0]
        finally:
            process.terminate()
            assert process.wait(5) == 0
