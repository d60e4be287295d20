"""The `nanwatch` command, as a shell sees it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanwatch import NanProbe


def nanwatch(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nanwatch", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_without_a_word_it_lists_its_commands_and_the_status_says_usage() -> None:
    done = nanwatch()
    assert done.returncode == 2
    assert all(word in done.stdout for word in ("sidecar", "status", "demo"))


def test_an_unknown_word_is_named() -> None:
    done = nanwatch("sidcar")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nanwatch: 'sidcar' is not a command\n")


@pytest.mark.parametrize("word", ["sidecar", "status", "demo"])
def test_a_command_refuses_to_start_on_a_variable_that_is_not_understood(word: str) -> None:
    done = nanwatch(word, NANWATCH_HEALTH_RATIO="2")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"nanwatch {word}: NANWATCH_HEALTH_RATIO='2' is not understood: it takes a number from 0 to 1"
    )


def test_status_shows_path_sources_totals_and_the_newest_corrupted_requests(journal: Path) -> None:
    with NanProbe(model_name="llama") as probe:
        probe.observe(torch.full((1, 4), torch.nan), ["req-7"], phase="prefill").result()
        done = nanwatch("status")
    assert done.returncode == 0
    assert f"journal {journal}" in done.stdout
    assert "active  llama engine 0 (torch) replica 0" in done.stdout
    assert "steps 1  rows 1  requests 1  corrupted 1" in done.stdout
    assert "'req-7'  step 1  prefill  4 NaN in 1 rows" in done.stdout
    assert done.stdout.splitlines()[-1] == "corrupted requests 1 of 1"
    assert "ended" in nanwatch("status").stdout


def test_status_of_a_folder_where_nobody_wrote_says_so(tmp_path: Path) -> None:
    done = nanwatch("status", "--journal", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "no source has written here yet" in done.stdout
    assert "cannot be read: No such file or directory" in done.stdout


@pytest.mark.parametrize("word", ["status", "drill", "sidecar"])
def test_an_empty_folder_name_is_not_the_current_folder(word: str) -> None:
    done = nanwatch(word, "--journal", "")
    assert done.returncode == 2
    assert done.stderr.endswith("argument --journal: it takes the path of a folder, found ''\n")


def test_a_reader_that_has_seen_enough_is_no_error(journal: Path) -> None:
    """As `nanwatch status | head -1`."""
    with NanProbe() as probe:
        probe.flush()
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m nanwatch status | true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["status", "--help", "", "status --help"])
def test_a_full_disk_behind_stdout_is_said_in_one_line(words: str, journal: Path) -> None:
    with NanProbe() as probe:
        probe.flush()
    command = f"env -u PYTHONUNBUFFERED {sys.executable} -m nanwatch {words} > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    name = f"nanwatch {words.removesuffix(' --help')}".strip()
    assert (done.returncode, done.stderr) == (1, f"{name}: [Errno 28] No space left on device\n")


def test_what_was_printed_before_an_error_of_the_system_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "import nanwatch.status\n"
        "def main(rest):\n    print('as far as it came')\n    raise OSError(5, 'Input/output error')\n"
        "nanwatch.status.main = main\n"
        "from nanwatch.cli import main\nraise SystemExit(main(['status']))\n"
    )
    command = ["env", "-u", "PYTHONUNBUFFERED", sys.executable, str(tmp_path / "failing.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "as far as it came\n")
    assert done.stderr == "nanwatch status: [Errno 5] Input/output error\n"


@pytest.mark.parametrize("words", ["status --journal x", "sidecar --journal x --listen 127.0.0.1:0"])
def test_a_current_folder_that_was_deleted_is_said_in_one_line(words: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; {Path(sys.executable).parent}/nanwatch {words}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=gone, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("the current folder was deleted, go to one that is there")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "status"), [("status", 0), ("run -- sh -c 'exit 5'", 5)])
def test_a_closed_stdout_leaves_the_status_as_it_is(words: str, status: int, journal: Path) -> None:
    with NanProbe() as probe:
        probe.flush()
    command = f"{sys.executable} -m nanwatch {words} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (status, "")


def test_what_is_for_a_closed_stderr_does_not_go_to_the_output_of_the_program(
    journal: Path, tmp_path: Path
) -> None:
    script = tmp_path / "engine.py"
    script.write_text(
        "import torch, nanwatch\nnanwatch.NanProbe().observe(torch.full((1, 4), torch.nan), ['a']).result()\n"
    )
    command = f"{sys.executable} -m nanwatch run -- {sys.executable} {script} 2>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_terminal_has_no_letter_for_is_escaped(journal: Path) -> None:
    with NanProbe(model_name="mod\xe8le") as probe:
        probe.flush()
    done = nanwatch("status", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ended   mod\\xe8le engine 0" in done.stdout
