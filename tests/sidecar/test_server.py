"""The sidecar as a process: how it starts, serves and ends."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from nanwatch_sidecar.health import MOST_PROBLEMS
from tests.engine import Engine

from .conftest import parse
from .running import Sidecar, asking_for_all, start_and_end

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def sidecar(journal: Path) -> Iterator[Sidecar]:
    with Sidecar(journal) as running:
        yield running


def test_it_says_where_it_listens_and_what_it_reads(sidecar: Sidecar, journal: Path) -> None:
    """One line at the start holds the address, with the port that it got, and the journal's absolute path."""
    assert sidecar.first_line == f"nanwatch sidecar: listening on {sidecar.url}, journal {journal}\n"
    assert sidecar.port != 0
    assert sidecar.get("/healthz").status_code == 200
    assert sidecar.end()[0] == 0
    assert sidecar.said() == []


def test_a_relative_folder_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that is logged can be compared with the engine's, whatever was typed."""
    monkeypatch.chdir(tmp_path)
    with Sidecar(Path("journal")) as running:
        assert running.first_line.endswith(f", journal {tmp_path}/journal\n")


def test_a_journal_that_is_a_file_is_said_and_looked_at_again(tmp_path: Path) -> None:
    """A wrong NANWATCH_JOURNAL is one line in the log; the sidecar serves, for it may be put right."""
    journal = tmp_path / "journal"
    journal.write_text("no folder")
    knob = "looking on. NANWATCH_JOURNAL names the folder"
    with Sidecar(journal) as sidecar:
        assert sidecar.get("/readyz").status_code == 503
        assert sidecar.get("/readyz").status_code == 503
        journal.unlink()
        with Engine(journal):
            assert sidecar.get("/readyz").status_code == 200
        assert sidecar.end()[0] == 0
        assert sidecar.said() == [
            f"nanwatch sidecar: {journal}: the journal folder cannot be read: Not a directory; {knob}"
        ]


LIMITED = """
import resource, sys
from nanwatch_sidecar.server import main
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("soft", "hard", "followed"), [(300, 2000, 500), (300, 300, 150), (64, 64, 32)])
def test_many_files_leave_descriptors_for_clients(journal: Path, soft: int, hard: int, followed: int) -> None:
    """The limit is raised as far as it may be, as many files followed as that allows, the others named."""
    with Engine(journal) as engine:
        engine.corrupt("A")
    (file,) = journal.iterdir()
    for n in range(499):
        again = file.read_text().replace('"file":"', f'"file":"{n}-').replace('"rank":"0"', f'"rank":"{n}"')
        (journal / f"{n}.jsonl").write_text(again)
    limited = LIMITED.format(soft=soft, hard=hard)
    with Sidecar(journal, starter=(sys.executable, "-c", limited)) as sidecar:
        found = sidecar.get("/readyz").json()
        scrape = parse(sidecar.get().text)
        assert found["sources"] == followed
        assert scrape.value("corrupted_requests_total") == followed
        assert scrape.value("nanwatch_journal_problems") == 500 - followed
        if followed < 500:
            assert f"not followed: {followed} files are" in found["problems"][0]
            assert found["problems"][MOST_PROBLEMS:] == [f"... and {500 - followed - MOST_PROBLEMS} more"]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_it_well_and_at_once(sidecar: Sidecar, number: signal.Signals) -> None:
    """SIGTERM and SIGINT end it at once with status 0."""
    sidecar.get()
    status, seconds = sidecar.end(number)
    assert status == 0
    assert seconds < 10


def test_open_connections_do_not_hold_up_the_end(sidecar: Sidecar) -> None:
    """A client that keeps its connection, and one that never ends its request, wait for nothing."""
    with (
        httpx.Client() as keeping,
        socket.create_connection(("127.0.0.1", sidecar.port)) as begun,
        socket.create_connection(("127.0.0.1", sidecar.port)),
    ):
        keeping.get(f"{sidecar.url}/metrics")
        begun.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n")
        time.sleep(0.1)
        status, seconds = sidecar.end()
    assert status == 0
    assert seconds < 10


def test_a_client_that_does_not_read_does_not_hold_up_the_end(journal: Path, sidecar: Sidecar) -> None:
    """Answers that nobody takes are given up, without a word: twenty tracebacks would fill the log's pipe."""
    with Engine(journal) as engine, ExitStack() as stuck:
        engine.corrupt(*(f"req-{n}" + "x" * 200 for n in range(10_000)))
        for _ in range(20):
            stuck.enter_context(asking_for_all(sidecar))
        time.sleep(1)
        status, seconds = sidecar.end()
    assert status == 0
    assert seconds < 10
    assert sidecar.said() == []


def test_head_sends_no_body(sidecar: Sidecar) -> None:
    """After the headers of a HEAD the next answer of the same connection comes at once."""
    ask = "{} /healthz HTTP/1.1\r\nHost: a\r\n{}\r\n"
    with socket.create_connection(("127.0.0.1", sidecar.port)) as connection:
        connection.sendall((ask.format("HEAD", "") + ask.format("GET", "Connection: close\r\n")).encode())
        answered = b"".join(iter(lambda: connection.recv(4096), b""))
    head, get = answered.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert get.startswith(b"HTTP/1.1 200 OK")


def test_an_address_that_is_taken_is_said_in_one_line() -> None:
    """Status 1, and what happened, where, and which knob helps."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = start_and_end("--listen", f"127.0.0.1:{port}")
    assert status == 1
    where, knobs = f"127.0.0.1:{port}", "--listen or NANWATCH_LISTEN names another address"
    assert said == [f"nanwatch sidecar: cannot listen on {where}: Address already in use; {knobs}"]


def test_a_host_that_is_not_known_is_said_in_one_line() -> None:
    """A name that cannot be resolved is treated as an address that cannot be had."""
    status, (said,) = start_and_end("--listen", "no-such-host.invalid:80")
    assert status == 1
    assert said.startswith("nanwatch sidecar: cannot listen on no-such-host.invalid:80: ")


def test_settings_that_are_not_understood_are_said_in_one_line() -> None:
    """Status 2, and the variable, its value and what it takes."""
    takes = "it takes 1 or 0, true or false, yes or no, on or off"
    status, said = start_and_end(NANWATCH_FAIL_FAST="maybe")
    assert status == 2
    assert said == [f"nanwatch sidecar: NANWATCH_FAIL_FAST='maybe' is not understood: {takes}"]


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":70000"])
def test_arguments_that_are_not_understood_are_usage(address: str) -> None:
    """Status 2, with the usage and the value that was wrong."""
    status, said = start_and_end("--listen", address)
    assert status == 2
    assert said[0].startswith("usage: nanwatch sidecar")
    assert repr(address) in said[-1]


def test_the_environment_sets_what_arguments_do_not(journal: Path) -> None:
    """NANWATCH_LISTEN and NANWATCH_JOURNAL hold where no argument was given."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nanwatch", "sidecar"],
        env={"NANWATCH_LISTEN": "[::1]:0", "NANWATCH_JOURNAL": str(journal)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    process.terminate()
    assert process.wait(30) == 0
    process.stderr.close()
    if "cannot listen" in said:
        pytest.skip("this machine has no IPv6 loopback")
    assert re.fullmatch(rf"nanwatch sidecar: listening on http://\[::1\]:\d+, journal {journal}\n", said)


def corrupted(sidecar: Sidecar) -> float:
    return parse(sidecar.get().text).value("corrupted_requests_total")


def test_a_killed_sidecar_knows_everything_when_it_is_back(journal: Path) -> None:
    """C is 7, the sidecar is killed and started: C is 7 at once, and 8 after one more."""
    with Engine(journal) as engine:
        engine.corrupt(*(f"req-{n}" for n in range(7)))
        with Sidecar(journal) as first:
            assert corrupted(first) == 7
            assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
        with Sidecar(journal) as second:
            assert corrupted(second) == 7
            engine.corrupt("req-7")
            assert corrupted(second) == 8


def test_a_stopped_sidecar_is_exact_when_it_goes_on(journal: Path, sidecar: Sidecar) -> None:
    """While it is stopped the engine writes on as if nothing was; afterwards C is exact."""
    with Engine(journal) as engine:
        assert corrupted(sidecar) == 0
        sidecar.process.send_signal(signal.SIGSTOP)
        for second in range(60):
            engine.corrupt(*(f"req-{second}-{n}" for n in range(200)), finished=True)
        sidecar.process.send_signal(signal.SIGCONT)
        assert corrupted(sidecar) == 12_000


def test_with_exit_on_nan_it_ends_after_two_scrapes(journal: Path) -> None:
    """Status 3 once the corrupted request was scraped twice, with a line that says why; not for old ones."""
    with Engine(journal) as engine:
        engine.corrupt("from before the start")
        with Sidecar(journal, "--exit-on-nan") as sidecar:
            for _ in range(3):
                assert corrupted(sidecar) == 1
            engine.corrupt("A")
            assert corrupted(sidecar) == 2
            time.sleep(0.5)
            assert sidecar.process.poll() is None
            assert corrupted(sidecar) == 2
            assert sidecar.wait() == 3
            assert sidecar.said() == [
                "nanwatch sidecar: ending with status 3: corrupted requests since the start: 1"
            ]


def test_a_signal_right_after_the_engines_death_still_is_status_3(journal: Path) -> None:
    """The engine writes its NaN and dies, and the sidecar is told to stop with it: a last poll sees it."""
    with Sidecar(journal, NANWATCH_FAIL_FAST="1") as sidecar:
        assert "nanwatch_fail_fast_enabled 1.0" in sidecar.get().text
        with Engine(journal, fail_fast=True) as engine:
            engine.corrupt("A")
        status, seconds = sidecar.end()
        assert status == 3
        assert seconds < 10


@pytest.mark.parametrize("options", [(), ("--exit-on-nan",)], ids=["off", "on"])
def test_without_new_nan_a_signal_means_well(journal: Path, options: tuple[str, ...]) -> None:
    """Status 0 if nothing new was corrupted, or if nobody asked for more."""
    with Engine(journal) as engine:
        engine.corrupt("old")
        with Sidecar(journal, *options) as sidecar:
            sidecar.get()
            if not options:
                engine.corrupt("new")
                sidecar.get()
                sidecar.get()
            assert sidecar.end()[0] == 0


def test_it_is_small(sidecar: Sidecar, journal: Path) -> None:
    """At most 60 MB are resident; how soon it is there, benchmarks/sidecar.py measures."""
    with Engine(journal) as engine:
        engine.corrupt("A")
        for _ in range(20):
            sidecar.get()
            sidecar.get("/v1/corrupted-requests")
            sidecar.get("/readyz")
    status = Path(f"/proc/{sidecar.process.pid}/status").read_text(encoding="ascii")
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    assert int(resident[1]) <= 60_000


COUNTING_FROZEN = """
import gc, sys
from nanwatch_sidecar.server import main
status = main(sys.argv[2:])
print(gc.get_freeze_count() > 10 * len(gc.get_objects()), file=sys.stderr)
sys.exit(status)
"""


def test_what_was_imported_is_not_looked_through_again(journal: Path) -> None:
    """The collector of garbage leaves out what was there at the start: a look through it takes 40 ms."""
    with Sidecar(journal, starter=(sys.executable, "-c", COUNTING_FROZEN)) as sidecar:
        sidecar.get()
        assert sidecar.end()[0] == 0
        assert sidecar.said() == ["True"]
