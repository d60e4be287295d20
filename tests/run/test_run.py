"""`nanwatch run -- COMMAND`: passes everything through, and ends what must end."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.seen import read
from tests.tools import has_ended, until

_BEGIN = """
import os, signal, sys, time
import torch
from nanwatch import NanLogitsError, NanProbe
BAD = torch.full((1, 32), float("nan"))
"""


def run(*command: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nanwatch", "run", "--", *command],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def engine(script: str) -> list[str]:
    return [sys.executable, "-c", _BEGIN + textwrap.dedent(script)]


def test_arguments_input_output_and_status_pass_through(journal: Path) -> None:
    script = "import sys; print(sys.argv[1:], input()); print('aside', file=sys.stderr); sys.exit(5)"
    done = run(sys.executable, "-c", script, "--listen", "a b", stdin="hello\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, "['--listen', 'a b'] hello\n", "aside\n")


def test_the_program_finds_nanwatch_switched_on_and_fail_fast_off(journal: Path) -> None:
    script = "import os; print(sorted(name for name in os.environ if name.startswith('NANWATCH_')))"
    done = run(sys.executable, "-c", script)
    assert done.stdout == "['NANWATCH_ENABLED', 'NANWATCH_JOURNAL', 'NANWATCH_RUN_ID']\n"


def test_a_program_that_a_signal_ended_has_the_status_that_a_shell_gives_it(journal: Path) -> None:
    assert run("sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("command", "status"), [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_started_is_named(journal: Path, command: str, status: int) -> None:
    done = run(command)
    assert done.returncode == status
    assert done.stderr.startswith(f"nanwatch run: {command}: ")


def test_without_a_command_it_says_usage(journal: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nanwatch", "run"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "which command?" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_passed_on_and_the_programs_own_status_comes_back(
    journal: Path, number: signal.Signals
) -> None:
    ignored = signal.signal(number, signal.SIG_DFL)  # a shell cannot trap what it was started ignoring: nohup
    trapped = number.name.removeprefix("SIG")
    script = f"trap 'echo got it; exit 9' {trapped}; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(
        [sys.executable, "-m", "nanwatch", "run", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.wait(10) == 9
            assert process.stdout.read() == "got it\n"
        finally:
            process.kill()
            signal.signal(number, ignored)


def test_corrupted_requests_are_named_in_one_line_at_the_end_and_the_status_stays(journal: Path) -> None:
    done = run(*engine("NanProbe().observe(BAD, ['req-7']).result()"))
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == f"nanwatch run: NaN in the logits of 'req-7' (journal {journal})"


def test_an_engine_that_dies_of_nan_but_says_0_has_status_70(journal: Path) -> None:
    script = """
    try:
        NanProbe().observe(BAD, ["req-7"])
    except NanLogitsError:
        os._exit(0)
    """
    done = run(*engine(script), NANWATCH_FAIL_FAST="1")
    assert done.returncode == 70
    assert done.stderr.splitlines()[-1] == (
        f"nanwatch run: stopped at NaN in the logits of 'req-7' (journal {journal})"
    )
    assert read(journal).totals.fail_fast_trips == 1


@pytest.mark.parametrize("folder", ["file", "missing/journal"])
def test_under_fail_fast_a_journal_that_cannot_be_written_is_refused(tmp_path: Path, folder: str) -> None:
    """An engine that swallows the error would end with 0, and nobody could know better."""
    (tmp_path / "file").write_text("")
    bad = str(tmp_path / folder)
    done = run(*engine("print('ran')"), NANWATCH_FAIL_FAST="1", NANWATCH_JOURNAL=bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nanwatch run: under fail-fast the journal has to be writable: ")
    assert f"journal folder {bad} " in done.stderr
    assert done.stderr.count("NANWATCH_JOURNAL") == 1
    assert run(*engine("print('ran')"), NANWATCH_JOURNAL=bad).stdout == "ran\n"


def test_what_an_earlier_run_left_in_the_journal_is_not_taken_for_ours(journal: Path) -> None:
    run(*engine("NanProbe().observe(BAD, ['earlier'])"), NANWATCH_FAIL_FAST="1")
    done = run(*engine("NanProbe().observe(torch.zeros(1, 4), ['mine']).result()"), NANWATCH_FAIL_FAST="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_that_waits_for_ever_after_another_raised_is_ended_with_it(journal: Path) -> None:
    script = """
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(300)
    time.sleep(0.2)
    try:
        NanProbe(rank="0").observe(BAD, ["req-7"])
    finally:
        os._exit(1)
    """
    done = run(*engine(script), NANWATCH_FAIL_FAST="1")  # in less than its 60 seconds
    assert done.returncode == 70
    until(lambda: has_ended(int(done.stdout)), "the other rank, killed, is gone")


def test_an_engine_that_hangs_after_the_raise_is_asked_to_end_and_then_ended(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
    try:
        NanProbe().observe(BAD, ["req-7"])
    except NanLogitsError:
        while True:
            time.sleep(1)
    """
    code = "import sys, nanwatch.run as r; r.GRACE_SECONDS = 1; sys.exit(r.main(['--', *sys.argv[1:]]))"
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    done = subprocess.run(
        [sys.executable, "-c", code, *engine(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (70, "asked\n")


def test_without_fail_fast_nothing_is_ended(journal: Path) -> None:
    script = """
    probe = NanProbe()
    probe.observe(BAD, ["req-7"]).result()
    time.sleep(1)
    print("still here")
    """
    done = run(*engine(script))
    assert (done.returncode, done.stdout) == (0, "still here\n")


def test_a_variable_that_is_not_understood_starts_nothing(journal: Path) -> None:
    done = run("touch", str(journal), NANWATCH_FAIL_FAST="ture")
    assert done.returncode == 2
    assert done.stderr.startswith("nanwatch run: NANWATCH_FAIL_FAST='ture' is not understood")
    assert not journal.exists()


def test_on_a_terminal_the_program_can_read_it_and_ctrl_c_reaches_it(journal: Path) -> None:
    script = "trap 'echo interrupted; exit 3' INT; read line; echo read $line; while :; do sleep 0.1; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "nanwatch", "run", "--", "sh", "-c", script])
    os.write(terminal, b"hello\n")
    assert "read hello" in _until(terminal, b"read hello")
    os.write(terminal, b"\x03")
    assert "interrupted" in _until(terminal, b"interrupted")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    os.close(terminal)


def _until(terminal: int, expected: bytes) -> str:
    seen = b""
    deadline = time.monotonic() + 20
    while expected not in seen and time.monotonic() < deadline:
        try:
            seen += os.read(terminal, 1024)
        except OSError:
            break
    return seen.decode()
