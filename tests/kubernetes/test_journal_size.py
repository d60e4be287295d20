"""The journal's volume as kubelet mounts it: root's, of the fsGroup, in memory, of the manifest's size."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.bench import can_mount

from .manifests import BASE, bytes_of, loaded, named, pod

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, and become another user")

POD = pod(loaded(BASE / "deployment.yaml"))
ENGINE = named("vllm", POD)["securityContext"]
GROUP = POD["securityContext"]["fsGroup"]


@contextmanager
def empty_dir(size: int) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="nanwatch-volume-"))
    made.chmod(0o755)
    if not can_mount(made / "trial"):
        shutil.rmtree(made)
        pytest.skip("mounting is not allowed here: no volume in memory")
    at = made / "journal"
    at.mkdir()
    options = f"size={size},uid=0,gid={GROUP},mode=2777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
        shutil.rmtree(made)


def written_to(volume: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.kubernetes.largest_journal", str(volume)]
    return subprocess.run(
        [*command, str(ENGINE["runAsUser"]), str(GROUP)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_largest_journal_of_an_engine_fits_into_its_volume() -> None:
    (journal,) = (volume["emptyDir"] for volume in POD["volumes"] if volume["name"] == "journal")
    limit = bytes_of(journal["sizeLimit"])
    assert journal["medium"] == "Memory"
    with empty_dir(limit) as volume:
        done = written_to(volume)
        assert done.returncode == 0, done.stderr
        (file,) = volume.iterdir()
        assert (file.stat().st_gid, file.stat().st_mode & 0o777) == (GROUP, 0o640)
    peak = int(done.stdout)
    print(f"at most {peak / 1e6:.0f} MB at once, of {limit / 1e6:.0f} MB")
    assert 40e6 < peak < 0.75 * limit


def test_what_does_not_fit_is_told() -> None:
    """So that the test above says something."""
    with empty_dir(16 << 20) as volume:
        done = written_to(volume)
        assert done.returncode == 1
        assert "the disk or the quota is full" in done.stderr
