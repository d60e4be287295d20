"""When a file is made anew while it is whole, and that nobody notices."""

import errno
import logging
import tracemalloc
from pathlib import Path

import pytest

from nanwatch.journal.line import CorruptedRequest, encode_corrupted
from nanwatch.journal.reader import JournalReader
from tests.engine import Engine, corrupted
from tests.journal.dying import Process, fail
from tests.journal.told import folded, is_free, lines, open_in, path_of, told
from tests.journal.truth import Life, Truth


def test_a_file_is_renewed_past_a_megabyte(journal: Path) -> None:
    """Heartbeats alone fill a megabyte, and then begin again with a snapshot."""
    with Engine(journal) as engine:
        engine.corrupt("a")
        inode, largest = path_of(engine).stat().st_ino, 0
        while path_of(engine).stat().st_ino == inode:
            engine.write()
            largest = max(largest, path_of(engine).stat().st_size)
        assert 999_000 < largest < 1_001_000
        assert path_of(engine).stat().st_size < 2000
        assert told(path_of(engine)) == ["a"]
        assert list(journal.iterdir()) == [path_of(engine)]


def test_a_file_is_renewed_past_twice_its_snapshot_only(journal: Path, renews_always: None) -> None:
    """A snapshot that is large is not written again and again."""
    with Engine(journal) as engine:
        engine.corrupt(*(f"request-{n}" for n in range(100)))
        snapshot, inode = path_of(engine).stat().st_size, path_of(engine).stat().st_ino
        while path_of(engine).stat().st_ino == inode:
            last = path_of(engine).stat().st_size
            engine.write()
        assert last <= 2 * snapshot < last + 600


def test_a_renewed_file_says_the_same(journal: Path, renews_always: None) -> None:
    """Totals, requests, identity and the start of this life; its earlier lives' requests stay."""
    with Engine(journal) as engine:
        engine.corrupt("a")
    with Engine(journal, life="life-2") as engine:
        engine.corrupt("b", "c")
        before = folded(path_of(engine))
        engine.writer._write_all(engine.writer._held_file())
        after = folded(path_of(engine))
        assert len(lines(path_of(engine))) == 3
        assert (after.file, after.start, after.totals) == (before.file, before.start, before.totals)
        assert [*after.corrupted.values()] == [*before.corrupted.values()]


def test_a_renewed_file_is_held_as_the_old_one_was(journal: Path, renews_always: None) -> None:
    """No moment in which a starter could take it; and nothing stays open of the old one."""
    with Engine(journal) as engine:
        for _ in range(20):
            engine.write()
            assert not is_free(path_of(engine))
        assert open_in(journal) == [path_of(engine).name]


def test_a_reader_follows_through_renewals(journal: Path, renews_always: None) -> None:
    """Its sum never falls, and at last it is right."""
    reader, total = JournalReader(journal), 0
    with Engine(journal) as engine:
        for n in range(60):
            engine.corrupt(f"request-{n}")
            reader.poll()
            (source,) = reader.sources
            assert total <= source.totals.corrupted_requests == n + 1
            total = source.totals.corrupted_requests
    reader.close()


def test_entries_are_encoded_once(
    journal: Path, renews_always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal joins what is encoded, and a request put many times is encoded once a line."""
    encoded: list[str] = []

    def encode(request: CorruptedRequest) -> bytes:
        encoded.append(request.request_id)
        return encode_corrupted(request)

    monkeypatch.setattr("nanwatch.journal.memory.encode_corrupted", encode)
    with Engine(journal) as engine:
        for rows in range(50):
            engine.writer.put(corrupted("a", rows=rows))
        engine.corrupt("b")
        assert encoded == ["a", "b"]
        for _ in range(20):
            engine.write()
        assert encoded == ["a", "b"]


def test_a_renewal_takes_no_memory_to_speak_of(journal: Path) -> None:
    """10,000 entries go to the disk in pieces: at once they were 5 MB, which some allocators keep."""
    with Engine(journal) as engine:
        engine.corrupt(*(f"request-{n}" for n in range(10_000)), finished=True)
        before = folded(path_of(engine))
        tracemalloc.start()
        engine.writer._write_all(engine.writer._held_file())
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        after = folded(path_of(engine))
        assert path_of(engine).stat().st_size > 1_500_000
        assert most_bytes < 1_000_000
        assert len(lines(path_of(engine))) == 3
        assert [*after.corrupted.values()] == [*before.corrupted.values()]


def test_a_stale_temporary_file_does_not_stop_a_renewal(journal: Path, renews_always: None) -> None:
    """A life that died while it renewed left it."""
    with Engine(journal) as engine:
        temporary = path_of(engine).with_suffix(".tmp")
        temporary.write_bytes(b"half a snap")
        engine.writer._write_all(engine.writer._held_file())
        assert not temporary.exists()
        assert len(lines(path_of(engine))) == 3


def test_a_failed_renewal_is_tried_again_after_five_seconds(
    journal: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then lines are appended; the temporary file is gone; it is counted, and logged once."""
    process.module("writer").RENEW_PAST_BYTES = 0
    now = [100.0]
    life = Life(Truth(journal), process)
    life.writer._monotonic = lambda: now[0]
    life.run("c")
    assert life.writer.path is not None
    process.always["rename"] = fail(errno.EXDEV)
    with caplog.at_level(logging.WARNING, logger="nanwatch"):
        assert life.run("1" * 10) == 0
    assert process.calls.count("rename") == 2  # the one at the start, and one that failed
    assert list(journal.glob("*.tmp")) == []
    now[0] += 4.9
    life.run("1")
    assert process.calls.count("rename") == 2
    now[0] += 0.2
    life.run("1")
    assert process.calls.count("rename") == 3
    assert [r.message for r in caplog.records] == [
        (
            "nanwatch cannot renew its journal file, which grows until it can: "
            "[Errno 18] Invalid cross-device link; tried every 5.0 s"
        )
    ]
    life.run("1")
    assert folded(life.writer.path).totals.journal_errors == 2
    process.always.clear()
    now[0] += 5.1
    life.run("1c")
    assert process.calls.count("rename") == 4
    assert folded(life.writer.path).totals.corrupted_requests == 14


def test_the_file_is_bounded_at_120_000_corrupted_requests(journal: Path) -> None:
    """A minute of 2,000 a second: 5 MB on disk, and 10,100 of them still told of."""
    with Engine(journal) as engine:
        largest = 0
        for n in range(0, 120_000, 500):
            engine.corrupt(*(f"chatcmpl-{i:032d}" for i in range(n, n + 500)), finished=True)
            largest = max(largest, path_of(engine).stat().st_size)
        assert largest < 6_000_000
        assert folded(path_of(engine)).totals.corrupted_requests == 120_000
        engine.writer._write_all(engine.writer._held_file())
        ids = told(path_of(engine))
        assert ids[:100] == [f"chatcmpl-{i:032d}" for i in range(100)]
        assert ids[100:] == [f"chatcmpl-{i:032d}" for i in range(110_000, 120_000)]
        assert path_of(engine).stat().st_size < 3_000_000
        assert folded(path_of(engine)).totals.dropped_entries == 0
