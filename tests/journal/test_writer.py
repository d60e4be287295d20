"""What the writer puts into its file, and how the next life goes on with it."""

import errno
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from nanwatch.journal.clock import boot_ns
from nanwatch.journal.folder import Folder
from nanwatch.journal.line import FileLine, StartLine
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter
from tests.engine import LABELS, Engine, corrupted, start_line
from tests.journal.dying import Process, fail
from tests.journal.told import folded, is_free, lines, path_of, told
from tests.journal.truth import Life, Truth


def test_a_file_begins_with_its_identity_and_zeros(journal: Path) -> None:
    """Before the first event every total is there, at 0."""
    with Engine(journal) as engine:
        first, start, report = lines(path_of(engine))
        assert first == FileLine(first.file, LABELS)
        assert len(first.file) == 32
        assert (start.life, start.totals, report.totals) == ("life-1", Totals(), Totals())
        assert report.corrupted == ()


def test_a_line_holds_all_totals_and_what_is_new(journal: Path) -> None:
    """Totals are cumulative; a request is told of once, and again when it changed."""
    with Engine(journal) as engine:
        engine.corrupt("a", "b")
        engine.corrupt("c")
        engine.writer.put(corrupted("a", rows=9, finished=True))
        engine.write()
        engine.write()
        reports = lines(path_of(engine))[3:]
        assert [[r.request_id for r in report.corrupted] for report in reports] == [
            ["a", "b"],
            ["c"],
            ["a"],
            [],
        ]
        assert [report.totals.corrupted_requests for report in reports] == [2, 3, 3, 3]
        assert (reports[2].corrupted[0].rows, reports[2].corrupted[0].finished) == (9, True)


def test_a_line_is_one_write(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one write(2) returned for survives the process."""
    with Engine(journal) as engine:
        sizes: list[int] = []
        real, ours = os.write, threading.get_ident()

        def write(descriptor: int, data: bytes) -> int:
            if threading.get_ident() == ours:
                sizes.append(len(data))
            return real(descriptor, data)

        monkeypatch.setattr(os, "write", write)
        before = path_of(engine).stat().st_size
        engine.corrupt(*(f"request-{n}" for n in range(1000)))
        assert sizes == [path_of(engine).stat().st_size - before]


def test_the_totals_of_a_line_are_those_of_its_time(journal: Path) -> None:
    """The caller goes on counting in the object that it handed over."""
    totals = Totals()
    out = JournalWriter(Folder(journal), LABELS, start_line())
    out.commit(totals)
    totals.steps = 5
    totals.dropped_steps["slots"] = 1
    assert out.path is not None
    os.truncate(out.path, 0)
    out._write_all(out._held_file())
    assert folded(out.path).totals == Totals()
    out.close()


def test_a_line_says_when_it_was_written(journal: Path) -> None:
    """Boot time for ages, wall clock for people, and the last step's."""
    before = boot_ns()
    with Engine(journal) as engine:
        engine.serve()
        report = lines(path_of(engine))[-1]
        assert before <= report.boot_ns <= boot_ns()
        assert report.last_step_seconds == engine.last_step_seconds <= report.wall_seconds


def test_the_next_life_goes_on_with_the_file(journal: Path) -> None:
    """Its start line holds the totals so far; its own are added; the earlier requests stay."""
    with Engine(journal) as engine:
        engine.corrupt("a", "b")
        engine.serve(5)
    with Engine(journal, life="life-2") as engine:
        assert len(list(journal.iterdir())) == 1
        start = lines(path_of(engine))[-2]
        assert isinstance(start, StartLine)
        assert (start.life, start.totals.corrupted_requests, start.totals.requests) == ("life-2", 2, 7)
        engine.corrupt("a")
        fold = folded(path_of(engine))
        assert (fold.totals.corrupted_requests, fold.totals.requests) == (3, 8)
        assert [r.key[:2] for r in fold.corrupted.values()] == [
            ("life-1", "a"),
            ("life-1", "b"),
            ("life-2", "a"),
        ]


def test_the_file_id_is_one_for_all_lives(journal: Path, renews_always: None) -> None:
    """Through continuation, renewal and healing."""
    ids = set()
    for life in range(3):
        with Engine(journal, life=f"life-{life}") as engine:
            for n in range(5):
                engine.corrupt(f"request-{n}")
            os.truncate(path_of(engine), 100)
            engine.write()
            ids.add(lines(path_of(engine))[0].file)
            path_of(engine).unlink()
            engine.write()
            ids.add(lines(path_of(engine))[0].file)
    assert len(ids) == 1
    assert folded(next(journal.glob("*.jsonl"))).totals.corrupted_requests == 15


def test_what_was_put_before_the_first_line_is_in_it(journal: Path) -> None:
    """Also where the file is an earlier life's."""
    for life in ("life-1", "life-2"):
        out = JournalWriter(Folder(journal), LABELS, start_line(life))
        out.put(corrupted("early", life=life))
        assert out.unsaved == 1
        out.commit(Totals(corrupted_requests=1))
        assert out.unsaved == 0
        out.close()
    fold = folded(next(journal.glob("*.jsonl")))
    assert ([*fold.corrupted.values()][1].life, fold.totals.corrupted_requests) == ("life-2", 2)


def test_closing_frees_the_lock_and_a_closed_writer_holds_nothing(journal: Path) -> None:
    """Readers see at once that this life has ended."""
    engine = Engine(journal)
    path = path_of(engine)
    assert not is_free(path)
    engine.die()
    engine.die()
    assert engine.writer.path is None
    assert is_free(path)


def test_two_probes_of_one_process_have_a_file_each(journal: Path) -> None:
    """The lock is the open file's, not the process's."""
    with Engine(journal) as one, Engine(journal, life="life-1#2") as other:
        one.corrupt("a")
        other.corrupt("a")
        assert path_of(one) != path_of(other)
        assert told(path_of(one)) == told(path_of(other)) == ["a"]


def test_without_locks_the_file_is_written_and_renewed_all_the_same(journal: Path, process: Process) -> None:
    """Its first line says that the heartbeat alone tells whether it lives."""
    process.module("writer").RENEW_PAST_BYTES = 0
    truth = Truth(journal)
    life = Life(truth, process)
    process.always["flock"] = fail(errno.ENOTSUP)
    assert life.run("c111111D1M1") == 0
    assert life.writer.path is not None
    assert lines(life.writer.path)[0].locked is False
    first = lines(life.writer.path)[0].file
    process.end()
    process.live()
    process.always["flock"] = fail(errno.ENOTSUP)
    later = Life(truth, process)
    later.run("c1")
    assert later.writer.path is not None
    assert lines(later.writer.path)[0].file != first
    truth.check_exact()


def test_a_clock_that_jumps_changes_no_count(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 22: two hours either way."""
    reader = JournalReader(journal)
    with Engine(journal) as engine:
        for n, hours in enumerate((0, 2, -2), 1):
            monkeypatch.setattr(time, "time", partial(float, 1e9 + hours * 3600))
            engine.corrupt(f"request-{n}")
            reader.poll()
            (source,) = reader.sources
            assert source.totals.corrupted_requests == n
            assert source.active
    reader.close()
