"""What the sidecar's side of the journal reads, and what it makes of trouble."""

import dataclasses
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from nanwatch.journal import followed
from nanwatch.journal import reader as reader_module
from nanwatch.journal.clock import boot_ns
from nanwatch.journal.followed import MOST_FIRST_LINE_BYTES
from nanwatch.journal.line import (
    MOST_LINE_BYTES,
    FileLine,
    ReportLine,
    encode_file,
    encode_report,
    encode_start,
)
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.source import Source
from nanwatch.journal.totals import Totals
from tests.engine import LABELS, Engine, start_line


@pytest.fixture
def reader(journal: Path) -> JournalReader:
    return JournalReader(journal)


def only(reader: JournalReader) -> Source:
    (source,) = reader.sources
    return source


def problems(reader: JournalReader) -> list[str]:
    return list(reader.problems)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def path_of(engine: Engine) -> Path:
    assert engine.writer.path is not None
    return engine.writer.path


def whole_file(file_id: str, requests: int) -> bytes:
    """Write down a file as a dead engine left it."""
    report = ReportLine(boot_ns(), 0.0, Totals(requests=requests))
    return encode_file(FileLine(file_id, LABELS)) + encode_start(start_line()) + encode_report(report)


def test_a_source_is_known_before_its_first_request(journal: Path, reader: JournalReader) -> None:
    """The first lines alone, all at zero, make a source known and active."""
    with Engine(journal):
        reader.poll()
        assert only(reader).active
        assert only(reader).totals == Totals()
    assert problems(reader) == []


def test_each_poll_takes_what_is_new(journal: Path, reader: JournalReader) -> None:
    """Totals and corrupted requests follow the file, poll by poll."""
    with Engine(journal) as engine:
        for n in range(1, 4):
            engine.corrupt(f"req-{n}")
            reader.poll()
            assert only(reader).corrupted_requests == n
            assert [request.request_id for request in only(reader).corrupted.values()][-1] == f"req-{n}"


def test_a_reader_that_starts_late_knows_everything_at_once(journal: Path) -> None:
    """A restarted sidecar counts what was written while it was away."""
    with Engine(journal) as engine:
        engine.corrupt(*(f"req-{n}" for n in range(7)))
        late = JournalReader(journal)
        late.poll()
        assert only(late).corrupted_requests == 7
        engine.corrupt("req-8")
        late.poll()
        assert only(late).corrupted_requests == 8


def test_lives_in_one_file_are_summed(journal: Path, reader: JournalReader) -> None:
    """An engine that died and was started again goes on with its file, and nothing is lost or doubled."""
    with Engine(journal, "life-1") as engine:
        engine.corrupt("cmpl-0", "cmpl-1")
    reader.poll()
    assert not only(reader).active
    with Engine(journal, "life-2") as engine:
        engine.corrupt("cmpl-0")
        reader.poll()
        assert only(reader).active
    assert only(reader).corrupted_requests == 3
    assert len(only(reader).corrupted) == 3


def test_a_held_lock_without_growth_is_not_active(journal: Path) -> None:
    """An engine that hangs holds its lock and is not active, until it writes again."""
    now = [100.0]
    reader = JournalReader(journal, lambda: now[0])
    with Engine(journal) as engine:
        reader.poll()
        now[0] += 11
        reader.poll()
        assert (only(reader).held, only(reader).active) == (True, False)
        engine.write()
        reader.poll()
        assert only(reader).active
    reader.poll()
    assert (only(reader).held, only(reader).active) == (False, False)


def test_the_probe_of_a_lock_keeps_nobody_out(journal: Path, reader: JournalReader) -> None:
    """After a poll the lock of a dead file is free for the next engine."""
    with Engine(journal) as engine:
        path = path_of(engine)
    reader.poll()
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_without_locks_the_heartbeat_alone_tells(
    journal: Path, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no locks a source lives as long as it writes."""
    with Engine(journal):
        monkeypatch.setattr(followed.Followed, "is_locked", lambda _: None)
        reader.poll()
        assert only(reader).active


def test_a_file_that_says_it_has_no_lock_is_not_dead_for_that(journal: Path, reader: JournalReader) -> None:
    """A file that was made where there are no locks is judged by its heartbeat, though its lock is free."""
    journal.mkdir(mode=0o700)
    lines = encode_file(FileLine("id", LABELS, locked=False)) + encode_start(start_line())
    (journal / "a-0.jsonl").write_bytes(lines)
    reader.poll()
    assert only(reader).active


def test_a_begun_line_is_taken_once_it_is_whole(journal: Path, reader: JournalReader) -> None:
    """What comes after the last newline is not looked at before its own newline is there."""
    journal.mkdir(mode=0o700)
    path, content = journal / "a-0.jsonl", whole_file("id", 5)
    for end in (3, len(content) - 1):
        path.write_bytes(content[:end])
        reader.poll()
        assert sum(source.requests for source in reader.sources) == 0
    path.write_bytes(content)
    reader.poll()
    assert only(reader).requests == 5
    assert problems(reader) == []


def test_a_begun_line_that_was_cut_back_is_not_mixed_with_the_next(
    journal: Path, reader: JournalReader
) -> None:
    """On a full disk a begun line is cut off again, and what is written in its place stands alone.

    Begun "...requests":99, cut, then "...requests":1000: joined at the old end it would be 9900.
    """
    journal.mkdir(mode=0o700)
    path, head = journal / "a-0.jsonl", whole_file("id", 0)
    before, after = (
        encode_report(ReportLine(boot_ns() // 10**9, 0.0, Totals(requests=n))) for n in (999, 1000)
    )
    begun = before[: before.index(b'"requests":99') + len(b'"requests":99')]
    path.write_bytes(head + begun)
    reader.poll()
    path.write_bytes(head + after)
    reader.poll()
    assert only(reader).requests == 1000


def test_a_file_that_became_shorter_is_read_from_its_beginning(journal: Path, reader: JournalReader) -> None:
    """A cut file and what is written into it next lower nothing and are not missed."""
    journal.mkdir(mode=0o700)
    path = journal / "a-0.jsonl"
    path.write_bytes(whole_file("one", 50) + b"\n" * 500)
    reader.poll()
    path.write_bytes(whole_file("two", 7))
    reader.poll()
    assert sorted(source.requests for source in reader.sources) == [7, 50]


def test_a_renewed_file_counts_as_the_one_before(journal: Path, reader: JournalReader) -> None:
    """A renewal puts another file at the path: the source stays one, its totals go on."""
    with Engine(journal) as engine:
        reader.poll()
        held, inodes = open_descriptors(), set()
        for start in range(0, 30_000, 1000):
            engine.corrupt(*(f"req-{n}" for n in range(start, start + 1000)), finished=True)
            inodes.add(path_of(engine).stat().st_ino)
            reader.poll()
            assert only(reader).corrupted_requests == start + 1000
            assert open_descriptors() == held
        assert len(inodes) > 1
        assert only(reader).active


def test_a_renewed_file_brings_no_second_of_what_is_known(journal: Path, reader: JournalReader) -> None:
    """All entries are said again: those that say the same stay one object, one that says more is taken."""
    with Engine(journal) as engine:
        engine.corrupt("A", "B")
        reader.poll()
        known = list(only(reader).corrupted.values())
        path = path_of(engine)
        again = path.read_bytes().replace(
            b'"request_id":"B","n":0', b'"request_id":"B","n":0,"finished":true'
        )
        path.rename(path.with_suffix(".old"))
        path.write_bytes(again.replace(b',"finished":false}]}', b"}]}"))
        reader.poll()
        a, b = only(reader).corrupted.values()
    assert a is known[0]
    assert not known[1].finished
    assert b == dataclasses.replace(known[1], finished=True)


def test_a_vanished_file_lowers_no_counter(journal: Path, reader: JournalReader) -> None:
    """Files that are deleted under the reader leave what they had counted, and no problem."""
    with Engine(journal) as engine:
        engine.corrupt("req-1")
        reader.poll()
        shutil.rmtree(journal)
        journal.mkdir(mode=0o700)
        reader.poll()
        assert only(reader).corrupted_requests == 1
        assert not only(reader).held
        assert problems(reader) == []
        engine.corrupt("req-2")
        reader.poll()
        assert only(reader).corrupted_requests == 2
        assert only(reader).active


def test_the_last_lines_of_a_file_that_was_replaced_are_taken(journal: Path, reader: JournalReader) -> None:
    """What was written between the last poll and the end of a file is still counted."""
    journal.mkdir(mode=0o700)
    path = journal / "a-0.jsonl"
    path.write_bytes(whole_file("one", 1))
    reader.poll()
    with path.open("ab") as file:
        file.write(encode_report(ReportLine(boot_ns(), 0.0, Totals(requests=5))))
    other = journal / "other"
    other.write_bytes(whole_file("two", 2))
    other.replace(path)
    reader.poll()
    assert sorted(source.requests for source in reader.sources) == [2, 5]


def test_the_last_lines_of_a_file_that_was_deleted_are_taken(journal: Path, reader: JournalReader) -> None:
    """A file is read to its end before it is let go."""
    with Engine(journal) as engine:
        reader.poll()
        path = path_of(engine)
        engine.corrupt("req-1")
        path.unlink()
        reader.poll()
        assert only(reader).corrupted_requests == 1


def test_descriptors_of_vanished_files_are_closed(journal: Path, reader: JournalReader) -> None:
    """A reader that lives for years does not collect descriptors of files that are long gone."""
    journal.mkdir(mode=0o700)
    before = open_descriptors()
    for n in range(20):
        path = journal / f"a-{n}.jsonl"
        path.write_bytes(whole_file(str(n), n))
        reader.poll()
        path.unlink()
    reader.poll()
    assert open_descriptors() == before
    assert sum(source.requests for source in reader.sources) == sum(range(20))


def test_close_lets_all_descriptors_go(journal: Path, reader: JournalReader) -> None:
    """After close nothing is held, and what was counted can still be read."""
    before = open_descriptors()
    with Engine(journal) as engine:
        engine.serve(3)
    reader.poll()
    reader.close()
    assert open_descriptors() == before
    assert only(reader).requests == 3


def test_a_copy_of_a_file_counts_once(journal: Path, reader: JournalReader) -> None:
    """A file and its copy hold the same id: the greatest of both is taken, not the sum."""
    with Engine(journal) as engine:
        engine.corrupt("req-1")
        shutil.copy(path_of(engine), journal / "copy.jsonl")
        engine.corrupt("req-2")
        reader.poll()
        assert only(reader).corrupted_requests == 2
        assert only(reader).active


def test_files_without_the_suffix_are_left_alone(journal: Path, reader: JournalReader) -> None:
    """A renewal's temporary file is not a second file of the same source."""
    journal.mkdir(mode=0o700)
    (journal / "a-0.tmp").write_bytes(whole_file("id", 1))
    reader.poll()
    assert (list(reader.sources), problems(reader)) == ([], [])


def test_a_missing_folder_is_named_and_found_once_it_is_there(journal: Path, reader: JournalReader) -> None:
    """A reader may start before the engine makes the folder."""
    reader.poll()
    assert problems(reader) == [f"{journal}: the journal folder cannot be read: No such file or directory"]
    with Engine(journal):
        reader.poll()
    assert (len(reader.sources), problems(reader)) == (1, [])


def foreign(folder: Path) -> dict[Path, str]:
    """Put everything that is not ours into a folder; returns what is to be said of each."""
    garbage, newer, pipe, link = (folder / f"{name}.jsonl" for name in ("garbage", "newer", "pipe", "link"))
    garbage.write_bytes(b"\x00\xff not a journal\n{}\n" + whole_file("after garbage", 99))
    newer.write_text(json.dumps({"kind": "file", "version": 2, "file": "id", "labels": {}}) + "\n")
    os.mkfifo(pipe)
    link.symlink_to("/etc/passwd")
    (folder / "folder.jsonl").mkdir()
    return {
        garbage: "the first line is not nanwatch's",
        newer: "journal version 2, this nanwatch reads 1 to 1",
        pipe: "is not a regular file",
        link: "is not a regular file",
        folder / "folder.jsonl": "is not a regular file",
    }


def test_what_is_not_ours_is_named_and_never_counted(journal: Path, reader: JournalReader) -> None:
    """Garbage, a newer version, a pipe, a link and a folder are left out, beside a source that counts."""
    with Engine(journal) as engine:
        expected = foreign(journal)
        engine.corrupt("req-1")
        for _ in range(2):
            reader.poll()
            assert only(reader).corrupted_requests == 1
            found = dict(problem.split(": ", 1) for problem in reader.problems)
            assert set(found) == set(map(str, expected))
            assert all(expected[Path(path)] in reason for path, reason in found.items())


def test_a_foreign_file_that_is_begun_anew_counts(journal: Path, reader: JournalReader) -> None:
    """A file that was refused is looked at again once it has been cut."""
    journal.mkdir(mode=0o700)
    path = journal / "a-0.jsonl"
    path.write_bytes(b"garbage\n" * 1000)
    reader.poll()
    assert len(reader.problems) == 1
    path.write_bytes(whole_file("id", 3))
    reader.poll()
    assert (only(reader).requests, problems(reader)) == (3, [])


def test_damaged_lines_are_left_out_and_said(journal: Path, reader: JournalReader) -> None:
    """Lines that do not parse cost only themselves; /readyz can say how many there were."""
    with Engine(journal) as engine:
        path = path_of(engine)
        engine.serve(2)
    with path.open("ab") as file:
        file.write(b'garbage\n\n{"kind":"report"}\n[]\n{"kind":"from the future"}\n')
    with Engine(journal, "life-2") as engine:
        engine.serve(3)
        reader.poll()
    assert only(reader).requests == 5
    assert problems(reader) == [f"{path}: 4 lines were not understood and left out"]


@pytest.mark.parametrize("number", [10**400, 1 << 63, -1, 1.5, True, "7", None])
def test_numbers_that_no_engine_counts_are_left_out(
    journal: Path, reader: JournalReader, number: object
) -> None:
    """A line with an absurd number is damaged: it moves no counter and breaks no poll."""
    with Engine(journal) as engine:
        path = path_of(engine)
    for cell in ("boot_ns", "requests"):
        raw = json.loads(encode_report(ReportLine(boot_ns(), 0.0, Totals(requests=4))))
        (raw if cell == "boot_ns" else raw["totals"])[cell] = number
        with path.open("a") as file:
            file.write(json.dumps(raw) + "\n")
    reader.poll()
    assert only(reader).requests == 0
    assert problems(reader) == [f"{path}: 2 lines were not understood and left out"]


def test_a_first_line_without_an_end_is_refused_early(journal: Path, reader: JournalReader) -> None:
    """A big file of somebody else's is not read whole before it is refused."""
    journal.mkdir(mode=0o700)
    path = journal / "big.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    reader.poll()
    assert problems(reader) == [
        f"{path}: the first line is not nanwatch's: it has more than {MOST_FIRST_LINE_BYTES} bytes"
    ]


def test_a_line_that_is_too_long_is_skipped_to_its_end(
    journal: Path, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too long for a line of ours is thrown away as it comes, and the next line counts."""
    assert MOST_LINE_BYTES >= 1 << 20
    monkeypatch.setattr(followed, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(followed, "_CHUNK_BYTES", 256)
    journal.mkdir(mode=0o700)
    path, content = journal / "a-0.jsonl", whole_file("id", 2)
    path.write_bytes(content + b"x" * 3000)
    reader.poll()
    assert reader._files[str(path)].offset == len(content) + 3000
    with path.open("ab") as file:
        file.write(b"x" * 500)
    reader.poll()
    with path.open("ab") as file:
        file.write(b"x\n" + encode_report(ReportLine(boot_ns(), 0.0, Totals(requests=9))))
    reader.poll()
    assert only(reader).requests == 9
    assert problems(reader) == [f"{path}: 1 lines were not understood and left out"]


def test_a_file_that_cannot_be_opened_keeps_its_values(
    journal: Path, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that became unreadable is a problem that is named, and its counters stand still."""
    journal.mkdir(mode=0o700)
    path = journal / "a-0.jsonl"
    path.write_bytes(whole_file("one", 4))
    reader.poll()
    path.unlink()
    path.write_bytes(whole_file("two", 4))

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("nanwatch.journal.followed.os.open", refuse)
        reader.poll()
    assert problems(reader) == [f"{path}: Permission denied"]
    assert only(reader).requests == 4
    reader.poll()
    assert (len(reader.sources), problems(reader)) == (2, [])


def test_a_file_that_cannot_be_read_does_not_stop_the_others(
    journal: Path, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the disk in one file leaves the rest of the poll as it is."""
    journal.mkdir(mode=0o700)
    (journal / "a-0.jsonl").write_bytes(whole_file("one", 1))
    (journal / "b-0.jsonl").write_bytes(whole_file("two", 2))
    read = os.pread
    failing: list[int] = []

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        failing.append(descriptor)
        if descriptor == failing[0]:
            raise OSError(5, "Input/output error")
        return read(descriptor, size, offset)

    with monkeypatch.context() as patch:
        patch.setattr("nanwatch.journal.followed.os.pread", pread)
        reader.poll()
    assert only(reader).requests == 2
    assert problems(reader) == [f"{journal / 'a-0.jsonl'}: Input/output error"]
    reader.poll()
    assert problems(reader) == []


def test_a_jump_of_the_wall_clock_is_not_noticed(
    journal: Path, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours forth or back change no age and no window: only boot times are compared."""
    with Engine(journal) as engine:
        for jump in (7200, -7200):
            monkeypatch.setattr("time.time", lambda jump=jump: 1_800_000_000.0 + jump)
            engine.corrupt(f"req{jump}")
            reader.poll()
            assert only(reader).active
        now = reader.clock()
        assert only(reader).corrupted_since(now - 5) == 2
        assert all(0 <= now - only(reader).seen_at(r) < 5 for r in only(reader).corrupted.values())


def test_boot_times_of_another_boot_are_taken_as_now(journal: Path, reader: JournalReader) -> None:
    """Under another boot, or in another time namespace, a line counts as written when it arrives."""
    journal.mkdir(mode=0o700)
    far = boot_ns() + 10**15
    start = start_line(clock="another boot/time:[1]", boot_ns=far - 60 * 10**9)
    report = encode_report(ReportLine(far, 0.0, Totals(requests=6)))
    (journal / "a-0.jsonl").write_bytes(
        encode_file(FileLine("id", LABELS, locked=False)) + encode_start(start) + report
    )
    reader.poll()
    assert only(reader).active
    assert only(reader).requests_since(reader.clock() - 30) == pytest.approx(3, abs=0.1)


def test_an_unknown_boot_is_never_the_same_boot(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither side can name its boot, their boot times are not compared."""
    monkeypatch.setattr(reader_module, "clock_domain", lambda: "unknown/none")
    reader = JournalReader(journal)
    journal.mkdir(mode=0o700)
    start = start_line(clock="unknown/none", boot_ns=0)
    (journal / "a-0.jsonl").write_bytes(
        encode_file(FileLine("id", LABELS, locked=False)) + encode_start(start)
    )
    reader.poll()
    assert only(reader).active


def test_a_line_from_the_future_is_from_now(journal: Path, reader: JournalReader) -> None:
    """A boot time that has not come yet makes nobody alive for longer."""
    journal.mkdir(mode=0o700)
    start = start_line(boot_ns=boot_ns() + 10**15)
    (journal / "a-0.jsonl").write_bytes(encode_file(FileLine("id", LABELS)) + encode_start(start))
    reader.poll()
    assert only(reader).grew_at <= reader.clock()


def test_a_file_that_stands_still_is_not_read_again(
    journal: Path, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four polls a second of a thousand dead files read nothing, a begun last line included."""
    journal.mkdir(mode=0o700)
    (journal / "a-0.jsonl").write_bytes(whole_file("id", 1) + b"begun")
    reader.poll()
    reads: list[int] = []
    monkeypatch.setattr("nanwatch.journal.followed.os.pread", lambda *arguments: reads.append(arguments[0]))
    reader.poll()
    assert reads == []


def test_the_lock_is_free_while_the_disk_is_waited_for(
    journal: Path, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs keeps nobody from looking at the sources."""
    with Engine(journal) as engine:
        reader.poll()
        engine.serve()
        hanging, go_on = threading.Event(), threading.Event()
        read = os.pread

        def pread(*arguments: int) -> bytes:
            hanging.set()
            go_on.wait(10)
            return read(*arguments)

        monkeypatch.setattr("nanwatch.journal.followed.os.pread", pread)
        poll = threading.Thread(target=reader.poll)
        poll.start()
        assert hanging.wait(10)
        assert reader.lock.acquire(timeout=1)
        reader.lock.release()
        go_on.set()
        poll.join(10)
    assert only(reader).requests == 1


def test_sources_change_only_under_the_lock(journal: Path, reader: JournalReader) -> None:
    """Who holds the lock sees sources that stand still, however much there is to read."""
    with Engine(journal) as engine:
        engine.serve(5)
        poll = threading.Thread(target=reader.poll)
        with reader.lock:
            poll.start()
            poll.join(0.2)
            assert reader.sources == ()
        poll.join(10)
    assert only(reader).requests == 5
