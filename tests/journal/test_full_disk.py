"""Writes that fail or come short: nothing is lost, the file stays whole lines, memory is bounded."""

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanwatch.journal.folder import Folder
from nanwatch.journal.line import LineError, StartLine
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter
from tests.engine import LABELS, Engine, corrupted, start_line
from tests.journal.dying import Process, come_short, fail
from tests.journal.told import folded, lines, path_of, told
from tests.journal.truth import Life, Truth


def test_a_short_write_is_cut_back(journal: Path, process: Process) -> None:
    """To the last whole line, at once; what was new is in the next line."""
    truth = Truth(journal)
    life = Life(truth, process)
    life.run("c1")
    assert life.writer.path is not None
    before = life.writer.path.read_bytes()
    process.always["write"] = come_short
    assert life.run("11") == 2
    assert life.writer.path.read_bytes() == before
    assert life.writer.unsaved == 2
    process.always.clear()
    assert life.run("c") == 0
    assert len(lines(life.writer.path)[-1].corrupted) == 2
    truth.check_exact()


def test_a_short_write_that_cannot_be_cut_back_is_healed(journal: Path, process: Process) -> None:
    """The file has a wrong size then: it is made anew."""
    truth = Truth(journal)
    life = Life(truth, process)
    life.run("c1")
    process.always |= {"write": come_short, "ftruncate": fail(errno.EIO)}
    assert life.run("1") == 1
    process.always.clear()
    assert life.run("c") == 0
    truth.check_exact()
    assert life.writer.path is not None
    assert len(lines(life.writer.path)) == 3


def test_errors_name_the_file(journal: Path, process: Process) -> None:
    """One clear line in the engine's log needs no traceback."""
    life = Life(Truth(journal), process)
    life.run("c")
    for action, said in (
        (fail(errno.EDQUOT), "[Errno 122] Disk quota exceeded: "),
        (come_short, "the disk or the quota is full: "),
    ):
        process.always["write"] = action
        with pytest.raises(OSError, match=r"\.jsonl'$") as failed:
            life.writer.commit(life._totals)
        assert said in str(failed.value)


def test_a_disk_that_is_full_at_the_first_start(journal: Path, process: Process) -> None:
    """One empty file is held and no other made; the first line is written when it can be."""
    truth = Truth(journal)
    life = Life(truth, process)
    process.always["write"] = fail(errno.ENOSPC)
    assert life.run("c111") == 4
    assert [(path.name[-7:], path.stat().st_size) for path in journal.iterdir()] == [("0.jsonl", 0)]
    assert process.calls.count("open") == 1 + 4  # one file, and a temporary one each time
    process.always.clear()
    assert life.run("c") == 0
    truth.check_exact()


def test_a_disk_that_is_full_when_a_life_goes_on(journal: Path, process: Process) -> None:
    """The dead file is folded once, and the start line written when it can be."""
    truth = Truth(journal)
    Life(truth, process).run("c11")
    process.end()
    process.live()
    life = Life(truth, process)
    process.always["write"] = fail(errno.ENOSPC)
    assert life.run("c1") == 2
    assert process.calls.count("pread") == 2
    process.always.clear()
    assert life.run("c") == 0
    truth.check_exact()
    assert life.writer.path is not None
    assert isinstance(lines(life.writer.path)[-2], StartLine)


def test_memory_is_bounded_while_nothing_can_be_written(journal: Path, process: Process) -> None:
    """100,000 corrupted requests: the newest and the first are kept, what was let go is counted."""
    life = Life(Truth(journal), process)
    life.run("c")
    process.always["write"] = fail(errno.EIO)
    process.module("writer").RENEW_PAST_BYTES = 1 << 40
    line = process.module("line")
    totals = line.Totals()
    for n in range(100_000):
        request = corrupted(f"request-{n}", life=life.name, finished=True)
        life.writer.put(line.CorruptedRequest(**{name: getattr(request, name) for name in request.__slots__}))
        totals.corrupted_requests += 1
        if n % 1000 == 0:
            with pytest.raises(OSError, match="Input/output"):
                life.writer.commit(totals)
            assert life.writer.unsaved <= 30_001
    process.always.clear()
    life.writer.commit(totals)
    assert life.writer.path is not None
    fold = folded(life.writer.path)
    assert fold.totals.corrupted_requests == 100_000
    assert fold.totals.dropped_entries == 100_000 - len(lines(life.writer.path)[-1].corrupted)
    assert 70_000 < fold.totals.dropped_entries < 90_000
    ids = told(life.writer.path)
    assert ids[0] == "request-0"
    assert ids[-1] == "request-99999"


def test_memory_is_bounded_while_nothing_is_even_tried(journal: Path) -> None:
    """A disk that hangs holds the recorder's thread; what it is then handed at once is bounded too."""
    engine = Engine(journal)
    for n in range(50_000):
        engine.writer.put(corrupted(f"request-{n}", finished=True))
    assert engine.writer.unsaved <= 30_001
    engine.totals.corrupted_requests = 50_000
    engine.write()
    assert folded(path_of(engine)).totals.corrupted_requests == 50_000
    assert folded(path_of(engine)).totals.dropped_entries >= 20_000 - 1
    engine.die()


def test_a_request_that_is_kept_is_not_counted_as_dropped(
    journal: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live ones stay however many newer ones come while nothing can be written."""
    life = Life(Truth(journal), process)
    life.writer._memory._kept._newest = 5
    life.writer._memory._kept._first = 0
    life.writer._memory._kept._prune_at = 10
    process.always["write"] = fail(errno.EIO)
    line = process.module("line")
    for n in range(30):
        request = corrupted(f"request-{n}", life=life.name, finished=n > 1)
        life.writer.put(line.CorruptedRequest(**{name: getattr(request, name) for name in request.__slots__}))
        with pytest.raises(OSError, match="Input/output"):
            life.writer.commit(line.Totals())
    process.always.clear()
    life.writer.commit(line.Totals())
    assert life.writer.path is not None
    ids = told(life.writer.path)
    assert ids == ["request-0", "request-1", *(f"request-{n}" for n in range(25, 30))]
    assert folded(life.writer.path).totals.dropped_entries == 30 - len(ids)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_real_full_disk(small_disk: Path) -> None:
    """Commits fail, the file stays whole lines, and all is there when there is room again."""
    engine = Engine(small_disk / "journal")
    observed = failed = 0
    while failed < 3:
        observed += 1
        try:
            engine.corrupt(f"request-{observed}-{'x' * 1500}")
        except OSError as error:
            failed += error.errno == errno.ENOSPC
        _assert_whole(path_of(engine))
    reader = JournalReader(small_disk / "journal")
    reader.poll()
    assert [source.totals.corrupted_requests for source in reader.sources] == [observed - 3]
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    engine.write()
    reader.poll()
    assert [source.totals.corrupted_requests for source in reader.sources] == [observed]
    assert len(told(path_of(engine))) == observed
    reader.close()
    engine.die()


def test_a_start_on_a_real_full_disk(small_disk: Path) -> None:
    """Nothing can be written, and then it can."""
    (small_disk / "ballast").write_bytes(b"x" * 65536)
    out = JournalWriter(Folder(small_disk / "journal"), LABELS, start_line())
    out.put(corrupted("a"))
    for _ in range(3):
        with pytest.raises(OSError, match=r"No space left on device|is full"):
            out.commit(Totals(corrupted_requests=1))
    (small_disk / "ballast").unlink()
    out.commit(Totals(corrupted_requests=1))
    assert out.path is not None
    assert told(out.path) == ["a"]
    out.close()


def test_a_disk_that_becomes_read_only(small_disk: Path) -> None:
    """Scenario 23: the engine goes on counting, and it is written when it can be."""
    engine = Engine(small_disk / "journal")
    engine.die()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(OSError, match="Read-only file system"):
        engine.corrupt("a")
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    engine.write()
    assert told(path_of(engine)) == ["a"]
    engine.die()


def _assert_whole(path: Path) -> None:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    try:
        lines(path)
    except LineError as error:
        pytest.fail(str(error))
