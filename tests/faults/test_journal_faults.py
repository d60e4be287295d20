"""Everything that can happen to the journal, on real file systems, under a running engine and sidecar.

In each: the engine runs on, says at most one clear line, keeps what is new in memory and writes it
when it can again; the sidecar stays up, says on /readyz what is wrong, and its counter is exact
afterwards. The engine's step time before and during is printed, not judged: machines are shared.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nanwatch import NanProbe
from nanwatch.journal.claim import slot_of
from tests.faults.bench import Bench, bench, can_mount, small_disk
from tests.sidecar.running import Sidecar

Undo = Callable[[], object]
_GOES_ON = "The engine runs on, counting goes on in memory, and writing is tried again every 0.25 s."


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk of its own, with NANWATCH_JOURNAL on it."""
    if not can_mount(tmp_path / "trial"):
        pytest.skip("mounting is not allowed here: no disk of its own to fill or to make read-only")
    with small_disk(tmp_path / "disk") as at:
        monkeypatch.setenv("NANWATCH_JOURNAL", str(at / "journal"))
        yield at


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def log_line(reason: str) -> str:
    return f"nanwatch cannot write its journal: {reason}. {_GOES_ON}"


# Before the engine starts: what is in the way, how it is taken away, and the line that says it.


def missing_parent(journal: Path) -> tuple[Undo, str]:
    parent = journal.parent
    parent.rmdir()
    return parent.mkdir, f"journal folder {journal} cannot be made: No such file or directory"


def somebody_elses(journal: Path) -> tuple[Undo, str]:
    journal.mkdir(mode=0o700)
    os.chown(journal, 12345, 12345)
    return (
        lambda: os.chown(journal, 0, 0),
        f"journal folder {journal} belongs to uid 12345 and this process runs as root (uid 0)",
    )


def symbolic_link(journal: Path) -> tuple[Undo, str]:
    real = journal.with_name("real")
    real.mkdir()
    journal.symlink_to(real)
    return journal.unlink, f"journal folder {journal} is a symbolic link; name the folder that it points to"


def plain_file(journal: Path) -> tuple[Undo, str]:
    journal.write_text("in the way")
    return journal.unlink, f"journal folder {journal} is not a folder"


def open_to_everyone(journal: Path) -> tuple[Undo, str]:
    journal.mkdir()
    os.chown(journal, 0, 12345)
    journal.chmod(0o777)
    return lambda: journal.chmod(0o755), f"journal folder {journal} can be written by everyone (mode 0777)"


IN_THE_WAY = [missing_parent, somebody_elses, symbolic_link, plain_file, open_to_everyone]


@pytest.mark.parametrize("fault", IN_THE_WAY, ids=lambda fault: fault.__name__)
def test_a_folder_that_cannot_be_used_at_the_start_is_one_line_and_is_used_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Path], tuple[Undo, str]]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder to another user")
    parent = tmp_path / "parent"
    parent.mkdir()
    journal = parent / "journal"
    monkeypatch.setenv("NANWATCH_JOURNAL", str(journal))
    undo, reason = fault(journal)
    with bench(journal) as engine:
        engine.plant(20)
        engine.eventually(lambda: engine.log)
        time.sleep(1)
        assert engine.sidecar.get("/readyz").status_code == 503
        assert engine.sidecar.get("/metrics").status_code == 200
        undo()
        engine.eventually(engine.all_counted)
        assert len(engine.log) == 1
        assert engine.log[0].startswith(f"nanwatch cannot write its journal: {reason}")
        assert engine.log[0].endswith(_GOES_ON)
        assert engine.sidecar.get("/readyz").status_code == 200


def test_a_disk_that_is_read_only_at_the_start(disk: Path) -> None:
    (disk / "journal").mkdir(mode=0o700)
    remount(disk, "ro")
    with bench(disk / "journal") as engine:
        engine.plant(20)
        engine.eventually(lambda: engine.log)
        remount(disk, "rw")
        engine.eventually(engine.all_counted)
        assert len(engine.log) == 1
        assert "Read-only file system" in engine.log[0]


@pytest.mark.parametrize(
    "content",
    [
        b"garbage without an end",
        b"garbage\n" * 100,
        b'{"kind":"file","version":99,"file":"x","labels":{}}\n',
        b'{"kind":"file","ver',
        b"x" * 50_000_000 + b"\n",
        b"x" * 50_000_000,
        b"",
    ],
    ids=[
        "garbage",
        "garbage lines",
        "newer major",
        "half a line",
        "a line of 50 MB",
        "50 MB without an end",
        "empty",
    ],
)
def test_a_file_that_is_not_ours_in_our_place_is_left_alone_or_begun_and_nothing_is_lost(
    journal: Path, content: bytes
) -> None:
    journal.mkdir(mode=0o700)
    with NanProbe() as probe:
        slot = slot_of(probe._labels)
    for file in journal.iterdir():
        file.unlink()
    (journal / f"{slot}-0.jsonl").write_bytes(content)
    with bench(journal) as engine:
        engine.plant(20)
        engine.eventually(engine.all_counted)
        assert engine.log == []
        assert engine.sidecar.get("/readyz").status_code == 200


def test_the_sidecar_names_a_newer_major_and_counts_the_rest(journal: Path) -> None:
    journal.mkdir(mode=0o700)
    (journal / "newer-0.jsonl").write_bytes(b'{"kind":"file","version":99,"file":"x","labels":{}}\n')
    with bench(journal) as engine:
        engine.plant(2)
        engine.eventually(engine.all_counted)
        assert "journal version 99, this nanwatch reads 1 to 1" in engine.readyz()


# In the middle of a run.


def run_through(engine: Bench, fault: Callable[[], Undo], capsys: pytest.CaptureFixture[str]) -> None:
    """Plant before, during and after a fault; everything has to be counted in the end."""
    engine.plant(3)
    engine.eventually(engine.all_counted)
    before = engine.step_microseconds()
    undo = fault()
    engine.plant(20)
    during = engine.step_microseconds()
    with capsys.disabled():
        print(f"\n  observe during / before {during / before:.2f}, logged: {engine.log or 'nothing'}")
    undo()
    engine.plant(3)
    engine.eventually(engine.all_counted)
    assert len(engine.log) <= 1


def nothing_to_undo() -> None:
    """The journal heals by itself."""


def delete_file(journal: Path) -> None:
    next(journal.iterdir()).unlink()


def truncate_file(journal: Path) -> None:
    os.truncate(next(journal.iterdir()), 100)


def empty_file(journal: Path) -> None:
    os.truncate(next(journal.iterdir()), 0)


def add_half_a_line(journal: Path) -> None:
    with next(journal.iterdir()).open("ab") as file:
        file.write(b'{"kind":"report","half')


def add_50_megabytes(journal: Path) -> None:
    with next(journal.iterdir()).open("ab") as file:
        file.write(b"x" * 50_000_000)


def replace_file(journal: Path) -> None:
    other = journal.parent / "other"
    other.write_bytes(b"somebody else's text\n")
    other.rename(next(journal.iterdir()))


def delete_folder(journal: Path) -> None:
    shutil.rmtree(journal)


def move_folder_away(journal: Path) -> None:
    journal.rename(journal.with_name("elsewhere"))


IN_THE_MIDDLE = [
    delete_file,
    truncate_file,
    empty_file,
    add_half_a_line,
    add_50_megabytes,
    replace_file,
    delete_folder,
    move_folder_away,
]


@pytest.mark.parametrize("harm", IN_THE_MIDDLE, ids=lambda harm: harm.__name__)
def test_a_journal_that_is_harmed_under_both_halves_heals_from_memory(
    journal: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None]
) -> None:
    with bench(journal) as engine:

        def fault() -> Undo:
            harm(journal)
            return nothing_to_undo

        run_through(engine, fault, capsys)
        assert engine.log == []


def plant_and_look(engine: Bench) -> list[str]:
    engine.plant()
    return engine.log


def test_a_full_disk_is_one_line_and_everything_is_written_once_there_is_room(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filler = disk / "filler"
    with bench(disk / "journal") as engine:

        def fill() -> Undo:
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            engine.eventually(lambda: plant_and_look(engine))
            return filler.unlink

        run_through(engine, fill, capsys)
        (line,) = engine.log
        assert "No space left on device" in line or "the disk or the quota is full" in line
        assert line.endswith(_GOES_ON)
        assert engine.seen().totals.journal_errors > 0


def test_a_reader_that_is_stopped_changes_nothing_for_the_engine_and_knows_everything_afterwards(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with bench(journal) as engine:

        def stop() -> Undo:
            engine.sidecar.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            while time.monotonic() - began < 3:  # about 2,000 corrupted requests a second
                engine.plant(20)
                time.sleep(0.01)
            return lambda: engine.sidecar.process.send_signal(signal.SIGCONT)

        run_through(engine, stop, capsys)
        assert engine.planted > 2000
        assert sum(file.stat().st_size for file in journal.iterdir()) < 16_000_000


_ENGINE = """
import sys, time, torch
from nanwatch import NanProbe
probe = NanProbe()
bad = torch.full((1, 32), float("nan"))
for number, _ in enumerate(sys.stdin):
    print(probe.observe(bad, [f"r{number}"]).result(), flush=True)
"""


def test_an_engine_that_is_stopped_is_not_active_keeps_its_count_and_goes_on(journal: Path) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", _ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as engine,
        Sidecar(journal) as sidecar,
    ):
        said_to, heard_from = engine.stdin, engine.stdout
        assert said_to is not None
        assert heard_from is not None

        def corrupt_one() -> None:
            print("go", file=said_to, flush=True)
            heard_from.readline()

        corrupt_one()
        assert _metric(sidecar, "nanwatch_hook_active") == 1
        engine.send_signal(signal.SIGSTOP)
        time.sleep(11)
        assert _metric(sidecar, "nanwatch_hook_active") == 0
        assert _metric(sidecar, "corrupted_requests_total") == 1
        engine.send_signal(signal.SIGCONT)
        corrupt_one()
        assert _metric(sidecar, "corrupted_requests_total") == 2
        assert _metric(sidecar, "nanwatch_hook_active") == 1
        said_to.close()


def _metric(sidecar: Sidecar, name: str) -> float:
    (line,) = (line for line in sidecar.get("/metrics").text.splitlines() if line.startswith(f"{name}{{"))
    return float(line.rpartition(" ")[2])
