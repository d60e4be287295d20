"""`nanwatch demo`: it shows what the sidecar says, and its exit status tells whether that is right."""

import math
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nanwatch import NanProbe, cli, demo
from nanwatch.demo import service as demo_service
from nanwatch.demo.others import other_engines
from nanwatch.demo.pace import Pace
from nanwatch.demo.service import DemoService
from nanwatch.demo.sidecar import Scrape, Sidecar, SidecarError, address_or_free_one
from nanwatch.demo.verdict import Planted, Reported, differences
from tests.engine import Engine
from tests.seen import read
from tests.tools import has_ended, until

if TYPE_CHECKING:
    from nanwatch.demo.model import DemoModel

PLANTED = Planted(requests=12, corrupted_ids=["demo-2", "demo-7"])
AS_PLANTED = Reported(requests=12, corrupted_requests=2, corrupted_ids=("demo-7", "demo-2"))
OTHER_ENGINE = "'llama' engine 0 (torch), host node-1, pid 4711"

SCRAPE = """\
# HELP corrupted_requests_total Requests with a NaN.
# TYPE corrupted_requests_total counter
corrupted_requests_total{engine="0",model_name="m"} 2.0
corrupted_requests_total{engine="1",model_name="m"} 1.0
corrupted_requests_total{engine="0",model_name="other"} 5.0
nanwatch_requests_total{engine="0",model_name="m"} 12.0
"""


def environment(**changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NANWATCH_")}
    inherited.pop("ONCE", None)
    return {**inherited, "PYTHONUNBUFFERED": "1", **changes}


@contextmanager
def running(*arguments: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo; it is killed where a test fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nanwatch", "demo", *arguments],
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def heard() -> Iterator[None]:
    """Programs that are started hear SIGHUP, although nohup may have started us."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def journal_of(output: str) -> Path:
    found = re.search(r"journal +(/\S+)", output)
    assert found, output
    return Path(found[1])


@pytest.mark.slow
def test_once_ends_well_with_every_number_as_planted(tmp_path: Path) -> None:
    with running("--listen", "127.0.0.1:0", ONCE="1", TMPDIR=str(tmp_path)) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert re.match(r'corrupted_requests_total\{.*model_name="demo".*\} 3\.0$', output.splitlines()[-1])
    poisoned = re.findall(r"(demo-\d+)  200  '[^']*<\|nan\|>' -> '!{10}'", output)
    assert len(poisoned) == 3
    for request_id in poisoned:
        assert re.search(rf"{request_id}  5,1\d\d NaN, logits rows 10, first at step \d+ \(prefill\)", output)
    assert f"poisoned of these: {', '.join(poisoned)}" in output
    assert re.search(r"http://127\.0\.0\.1:\d+/metrics", output)
    assert max(len(line) for line in output.splitlines() if not line.startswith(("journal", "status"))) <= 104
    assert list(tmp_path.iterdir()) == [], "the journal is removed"


@pytest.mark.slow
def test_fail_fast_shows_the_error_and_the_counter_and_ends_with_70(tmp_path: Path) -> None:
    with running(
        "--listen", "127.0.0.1:0", NANWATCH_FAIL_FAST="1", NANWATCH_JOURNAL=str(tmp_path)
    ) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 70, output
    assert re.search(r"NanLogitsError: NaNs detected in logits: \{'demo-\d+': \d+\}", output)
    assert re.search(r"^ *corrupted_requests_total\{.*\} 1\.0$", output, re.MULTILINE)
    assert list(tmp_path.glob("*.jsonl")), "a journal that was given is kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_demo_and_its_sidecar(number: signal.Signals, status: int, heard: None) -> None:
    with taken_port() as port, running("--listen", f"127.0.0.1:{port}") as process:
        assert process.stdout
        seen = ""
        while "demo-1  200" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        sidecar = re.search(r"\(process (\d+)\)", seen)
        assert sidecar
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        assert has_ended(int(sidecar[1]))
        assert not journal_of(seen).exists()
    assert re.search(rf"port +{port} is taken, so \d+", seen)


@pytest.mark.slow
def test_the_engine_alone_writes_the_journal_and_ends_when_its_time_is_over(tmp_path: Path) -> None:
    alone = ("--no-sidecar", "--poison-every", "1", "--end-after", "3")
    with running(*alone, NANWATCH_JOURNAL=str(tmp_path)) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "/metrics" not in output
    served, poisoned = map(int, re.findall(r"(\d+) requests, (\d+) poisoned", output)[-1])
    journal = read(tmp_path)
    assert (journal.totals.requests, journal.corrupted) == (served, poisoned)
    assert poisoned >= 1


@pytest.mark.slow
def test_the_engine_alone_is_stopped_by_fail_fast_with_70(tmp_path: Path) -> None:
    with running(
        "--no-sidecar", "--poison-every=1", NANWATCH_JOURNAL=str(tmp_path), NANWATCH_FAIL_FAST="1"
    ) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 70, output
    assert re.search(r"^NaNs detected in logits: \{'demo-\d+': \d+\}", output, re.MULTILINE)
    assert read(tmp_path).corrupted == 1


def test_the_journal_of_a_running_engine_is_refused_in_one_line(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(journal, replica="demo"):
        before = sorted(journal.iterdir())
        assert cli.main(["demo", "--end-after", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"nanwatch demo: NANWATCH_JOURNAL='{journal}' is the journal of a running engine")
    assert OTHER_ENGINE in line
    assert sorted(journal.iterdir()) == before


def test_a_journal_that_cannot_be_written_is_refused_in_one_line(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.write_text("a file")
    assert cli.main(["demo", "--end-after", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"nanwatch demo: the journal cannot be written: journal folder {journal} is not a folder"
    )


def test_what_an_engine_that_ended_left_in_the_journal_and_our_own_source_are_no_other_engine(
    journal: Path,
) -> None:
    began = time.monotonic()
    Engine(journal, replica="ended").die()
    with NanProbe(), NanProbe(replica="1"):
        assert other_engines(journal) == []
        with Engine(journal):
            assert other_engines(journal) == [OTHER_ENGINE]
    assert other_engines(journal, since=began) == [OTHER_ENGINE] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--once", "--no-sidecar"], "leave out --no-sidecar"),
        (["--once", "--poison-every", "0"], "leave out --poison-every 0"),
        (["--end-after", "-1"], "'-1' is not understood: it takes seconds from 0"),
        (["--end-after", "soon"], "'soon' is not understood: it takes seconds from 0"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_words(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["demo", *arguments])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "once"), [("1", True), ("yes", True), ("", False), ("0", False), ("no", False)]
)
def test_once_is_a_boolean_like_any_other(value: str, once: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setenv("ONCE", value)
    assert demo._arguments([]).once is once


def test_a_once_that_is_not_understood_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONCE", "maybe")
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == "nanwatch demo: ONCE='maybe' is not understood: it takes 1 or 0\n"


def test_the_engine_alone_needs_no_extra_of_the_sidecar() -> None:
    assert not set(demo._ENGINE_NEEDS) & set(demo._SIDECAR_NEEDS)


@pytest.mark.parametrize(
    ("reported", "sentence"),
    [
        (Reported(12, 1, ("demo-2", "demo-7")), "corrupted_requests_total is 1, expected 2"),
        (Reported(12, 3, ("demo-2", "demo-7")), "corrupted_requests_total is 3, expected 2"),
        (Reported(11, 2, ("demo-2", "demo-7")), "nanwatch_requests_total is 11, expected 12"),
        (Reported(12, 2, ("demo-2",)), "poisoned but not in /v1/corrupted-requests: demo-7"),
        (
            Reported(12, 2, ("demo-2", "demo-7", "demo-9")),
            "in /v1/corrupted-requests but not poisoned: demo-9",
        ),
        (
            Reported(12, 2, ("demo-2", "demo-7"), unattributed_nan_rows=1),
            "nanwatch_unattributed_nan_rows_total is 1, expected 0",
        ),
        (
            Reported(12, 2, ("demo-2", "demo-7"), dropped_steps=4),
            "nanwatch_dropped_steps_total is 4, expected 0",
        ),
    ],
)
def test_every_number_that_is_off_is_named(reported: Reported, sentence: str) -> None:
    assert differences(PLANTED, reported) == [sentence]


def test_nothing_differs_where_all_came_out_as_planted() -> None:
    assert differences(PLANTED, AS_PLANTED) == []


class _Sidecar:
    """Says that one of three poisoned requests was corrupted."""

    def __init__(self, poisoned: list[str]) -> None:
        self._poisoned = poisoned

    def scrape(self) -> Scrape:
        labels = f'{{model_name="{demo_service.MODEL_NAME}"}}'
        return Scrape(f"corrupted_requests_total{labels} 1.0\nnanwatch_requests_total{labels} 0.0")

    def corrupted_requests(self, _since: float) -> list[dict[str, Any]]:
        return [{"request_id": name, "finished": True} for name in self._poisoned]


def test_a_number_that_is_not_as_planted_ends_the_demo_with_1(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_service, "REPORT_SECONDS", 0.0)
    said: list[str] = []
    service = DemoService(
        cast("DemoModel", None),
        cast("Sidecar", _Sidecar(["demo-1"])),
        cast("Pace", None),
        journal=journal,
        model_name=demo_service.MODEL_NAME,
        once=True,
        say=said.append,
    )
    service._planted = Planted(requests=0, corrupted_ids=["demo-1"])
    Engine(journal).die()
    assert service._judge() == 1
    assert "WRONG: corrupted_requests_total is 0, expected 1" in said, "it counts from the demo's begin"
    assert any(OTHER_ENGINE in line for line in said), "whose counts it may be"


def test_a_scrape_is_summed_for_one_model_alone() -> None:
    scrape = Scrape(SCRAPE)
    assert scrape.total("corrupted_requests_total", "m") == 3
    assert scrape.total("corrupted_requests_total", "nobody") == 0
    assert scrape.lines("nanwatch_requests_total", "m") == [
        'nanwatch_requests_total{engine="0",model_name="m"} 12.0'
    ]


@pytest.mark.parametrize("missing", ["transformers", "fastapi"])
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == missing else SimpleNamespace())
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == (
        f"nanwatch demo: {missing} is not installed: pip install '.[demo,sidecar]' in nanwatch's folder\n"
    )


def test_a_sidecar_that_does_not_come_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NANWATCH_")]:
        monkeypatch.delenv(name)
    with (
        taken_port() as port,
        Sidecar(("127.0.0.1", port), tmp_path) as sidecar,
        pytest.raises(SidecarError, match=f"ended with 1: .*cannot listen on 127.0.0.1:{port}"),
    ):
        sidecar.wait_until_up()


def test_a_sidecar_that_ended_is_said_in_one_line_when_it_is_asked(tmp_path: Path) -> None:
    with Sidecar(("127.0.0.1", 0), tmp_path) as sidecar:
        os.kill(sidecar.pid, signal.SIGKILL)
        with pytest.raises(SidecarError, match=r"^the sidecar ended with -9: "):
            sidecar.scrape()


def test_a_demo_that_is_killed_leaves_no_sidecar(tmp_path: Path) -> None:
    script = """
    import os, pathlib, signal, sys
    from nanwatch.demo.sidecar import Sidecar
    print(Sidecar(("127.0.0.1", 0), pathlib.Path(sys.argv[1])).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    pid = int(subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout)
    until(lambda: has_ended(pid), "the sidecar has ended")


def test_the_wanted_address_is_taken_where_it_is_free() -> None:
    with taken_port() as port:
        host, other = address_or_free_one(("127.0.0.1", port))
        assert host == "127.0.0.1"
        assert other != port
    assert address_or_free_one(("127.0.0.1", port)) == ("127.0.0.1", port)


def test_a_pace_without_poison_ends_clean() -> None:
    now = 100.0
    with Path(os.devnull).open(encoding="utf-8") as nobody:
        pace = Pace(nobody, poison_seconds=math.inf, end_seconds=20.0, clock=lambda: now)
        now += 19.9
        assert not pace.over()
        assert not pace.poison_due()
        now += 0.1
        assert pace.over()
    assert pace.rule == "no prompt by itself"


def test_enter_poisons_at_once_and_time_does_by_itself() -> None:
    now = 100.0
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as terminal:
        pace = Pace(terminal, clock=lambda: now)
        assert not pace.poison_due()
        os.write(ours, b"\n")
        pace.rest()
        assert pace.poison_due()
        assert not pace.poison_due()
        now += 5.0
        assert pace.poison_due()
        os.write(ours, b"\x04")  # Ctrl-D: nobody types any more
        pace.rest()
        before = time.monotonic()
        pace.rest()
        assert time.monotonic() - before > 0.2, "it does not run hot"
        assert not pace.poison_due()
    os.close(ours)
