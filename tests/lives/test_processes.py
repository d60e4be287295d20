"""Processes begin and end in many ways; nothing that was returned is lost, and nobody hangs.

Each script runs in an interpreter of its own, because a fork or an exit cannot be tested inside
the test's.
"""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.seen import read

_BEGIN = """
import multiprocessing, os, signal, sys, threading, time
import torch, nanwatch
from nanwatch import NanProbe, NanLogitsError
BAD = torch.full((1, 32), float("nan"))
CLEAN = torch.zeros(1, 32)
probe = None

def one_nan(name):
    worker = probe or NanProbe()
    worker.observe(BAD, [name])

def many(method):
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=one_nan, args=(f"{method}-{i}",)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0, worker.exitcode
"""


def run(script: str, tmp_path: Path, timeout: float = 150) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "script.py"
    main = textwrap.indent(textwrap.dedent(script), "    ")
    file.write_text(f"{_BEGIN}\nif __name__ == '__main__':\n{main}\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=timeout, check=False
    )


def well(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_four_workers_are_four_sources_and_the_parent_has_none_of_their_requests(
    journal: Path, tmp_path: Path, method: str
) -> None:
    well(f"many({method!r})", tmp_path)
    seen = read(journal)
    assert (len(seen.lives), seen.corrupted) == (4, 4)
    assert sorted(seen.ids) == [f"{method}-{i}" for i in range(4)]


def test_workers_forked_from_a_parent_that_observes_are_new_sources_and_the_parent_keeps_its_own(
    journal: Path, tmp_path: Path
) -> None:
    script = """
    probe = NanProbe()
    probe.observe(BAD, ["parent"]).result()
    many("fork")
    probe.observe(CLEAN, ["parent"])
    """
    well(script, tmp_path)
    seen = read(journal)
    assert (len(seen.lives), seen.corrupted) == (5, 5)
    assert seen.request("parent").finished is False


def test_a_child_that_lives_on_does_not_keep_its_dead_parents_file_locked(
    journal: Path, tmp_path: Path
) -> None:
    script = """
    probe = NanProbe()
    probe.observe(BAD, ["parent"]).result()
    if os.fork() == 0:
        os.close(1)
        os.close(2)
        time.sleep(10)
        os._exit(0)
    os._exit(0)
    """
    well(script, tmp_path)
    well("NanProbe().observe(BAD, ['next life']).result()", tmp_path)
    assert (read(journal).sources, read(journal).corrupted) == (1, 2)


def test_a_fork_in_the_middle_of_everything_neither_hangs_nor_breaks_the_child(
    journal: Path, tmp_path: Path
) -> None:
    script = """
    probe = NanProbe()
    stop = threading.Event()

    def load():
        step = 0
        while not stop.is_set():
            probe.observe(BAD, [f"load-{step}"])
            probe.finish([f"load-{step}"])
            step += 1

    thread = threading.Thread(target=load)
    thread.start()
    for child in range(40):
        pid = os.fork()
        if pid == 0:
            probe.observe(BAD, [f"child-{child}"]).result()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    thread.join()
    """
    well(script, tmp_path)
    ids = {r.request_id for r in read(journal).requests}
    assert ids >= {f"child-{child}" for child in range(40)}


def test_fail_fast_leaves_the_request_in_the_journal_though_the_process_is_gone_50_ms_later(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    script = """
    probe = NanProbe()
    two = torch.zeros(2, 32)
    two[0, :2] = float("nan")
    try:
        probe.observe(two, ["A", "B"])
    except NanLogitsError as error:
        print(error)
        time.sleep(0.05)
        os._exit(9)
    """
    done = run(script, tmp_path)
    assert (done.returncode, done.stdout) == (9, "NaNs detected in logits: {'A': 2}\n")
    assert (read(journal).corrupted, read(journal).ids) == (1, ["A"])


ENDS = {
    "returns": "",
    "sys.exit": "sys.exit(0)",
    "an exception": "raise SystemExit(0)",
    "a thread in the middle of a step": """
        # Without the sleep it may be inside torch when the interpreter ends, which aborts any program.
        def load():
            while True:
                probe.observe(CLEAN, ["load"])
                time.sleep(0.001)
        threading.Thread(target=load, daemon=True).start()
        time.sleep(0.2)
    """,
    "an abandoned observation": "kept = [probe.observe(CLEAN, [str(i)]) for i in range(2000)]",
    "a closed probe": "probe.close()",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_interpreter_that_ends_writes_what_was_observed_without_a_hang_or_a_traceback(
    journal: Path, tmp_path: Path, end: str
) -> None:
    begin = "probe = NanProbe()\nprobe.observe(BAD, ['last words'])\nprint(time.monotonic(), flush=True)\n"
    done = well(begin + textwrap.dedent(end), tmp_path)
    assert done.stderr.splitlines() == ["NaN in the logits of 'last words' (step 1, phase decode)"]
    assert time.monotonic() - float(done.stdout) < 20
    assert read(journal).ids == ["last words"]


def test_an_interrupt_inside_observe_passes_through_and_the_process_ends_at_once(
    journal: Path, tmp_path: Path
) -> None:
    script = """
    probe = NanProbe()
    probe.observe(BAD, ["before"]).result()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        while True:
            probe.observe(CLEAN, ["a", ][:1])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    probe.observe(BAD, ["after"]).result()
    """
    done = well(script, tmp_path)
    assert done.stdout == "interrupted\n"
    assert read(journal).ids == ["before", "after"]


def test_what_a_result_returned_survives_a_sigkill(journal: Path, tmp_path: Path) -> None:
    script = """
    probe = NanProbe()
    print(probe.observe(BAD, ["A"]).result(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run(script, tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "{'A': 32}\n")
    assert read(journal).ids == ["A"]
