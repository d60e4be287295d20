"""Engine and sidecar as different users, as in two containers that share a volume."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seen import read
from tests.sidecar.running import Sidecar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as other users")

NOBODY = 65534
ENGINE_USER = 12345


@pytest.fixture
def volume() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="nanwatch-volume-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def engine(
    journal: Path, request_id: str, user: int = 0, groups: tuple[int, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*as_user(user, *groups), "tests.faults.one_nan", request_id],
        env={**os.environ, "NANWATCH_JOURNAL": str(journal), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def as_user(user: int, *groups: int) -> list[str]:
    return [sys.executable, "-m", "tests.faults.as_user", str(user), ",".join(map(str, groups))]


def counted(journal: Path) -> str:
    """Return the counter's line as a sidecar shows it that runs as nobody."""
    with Sidecar(journal, starter=as_user(NOBODY)) as sidecar:
        assert sidecar.get("/readyz").status_code == 200
        (line,) = (
            line
            for line in sidecar.get("/metrics").text.splitlines()
            if line.startswith("corrupted_requests_total{")
        )
        return line.rpartition(" ")[2]


def test_an_engine_of_root_and_a_sidecar_of_nobody_share_a_group(volume: Path) -> None:
    journal = volume / "journal"
    for life in (1, 2):  # also after the engine was started again
        done = engine(journal, f"r{life}", NANWATCH_JOURNAL_GROUP=str(NOBODY))
        assert done.stdout == f"{{'r{life}': 32}}\n", done.stderr
        assert counted(journal) == f"{life}.0"
    assert _modes(journal) == (0o2770, {0o640})


def test_a_sidecar_needs_only_a_read_only_mount(volume: Path) -> None:
    journal, mounted = volume / "journal", volume / "mounted"
    engine(journal, "r1", NANWATCH_JOURNAL_GROUP=str(NOBODY))
    mounted.mkdir()
    if subprocess.run(["mount", "--bind", str(journal), str(mounted)], check=False).returncode:
        pytest.skip("mounting is not allowed here: no read-only mount to read through")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(mounted)], check=True)
        assert counted(mounted) == "1.0"
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_an_engine_of_another_user_and_a_sidecar_of_root(volume: Path) -> None:
    os.chown(volume, ENGINE_USER, ENGINE_USER)
    done = engine(volume / "journal", "r1", user=ENGINE_USER)
    assert done.stdout == "{'r1': 32}\n", done.stderr
    assert read(volume / "journal").ids == ["r1"]


def test_a_kubernetes_empty_dir_with_an_fs_group_is_accepted(volume: Path) -> None:
    journal = volume / "emptydir"
    journal.mkdir()
    os.chown(journal, 0, NOBODY)
    journal.chmod(0o2777)
    done = engine(journal, "r1", user=ENGINE_USER, groups=(NOBODY,), NANWATCH_JOURNAL_GROUP=str(NOBODY))
    assert done.stdout == "{'r1': 32}\n", done.stderr
    assert counted(journal) == "1.0"


def test_without_the_group_both_sides_say_so(volume: Path) -> None:
    journal = volume / "journal"
    engine(journal, "r1")
    with Sidecar(journal, starter=as_user(NOBODY)) as sidecar:
        answer = sidecar.get("/readyz")
        assert answer.status_code == 503
        assert "Permission denied" in answer.text
        assert "NANWATCH_JOURNAL_GROUP" in answer.text
        assert sidecar.get("/metrics").status_code == 200
    done = engine(journal, "r2", user=ENGINE_USER)
    assert "belongs to root (uid 0) and this process runs as uid 12345" in done.stderr


def _modes(journal: Path) -> tuple[int, set[int]]:
    return journal.stat().st_mode & 0o7777, {file.stat().st_mode & 0o7777 for file in journal.iterdir()}
