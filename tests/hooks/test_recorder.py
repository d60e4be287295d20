"""The recorder: when it writes, and what happens when it cannot."""

import logging
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from nanwatch import backlog as backlog_module
from nanwatch import recorder as recorder_module
from nanwatch.attribution import Charge, Charges, Layout
from nanwatch.journal.clock import clock_domain
from nanwatch.journal.folder import Folder
from nanwatch.journal.line import Labels, StartLine
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter
from nanwatch.ledger import Ledger
from nanwatch.lifetimes import Lifetimes
from nanwatch.observation import Step
from nanwatch.recorder import Recorder
from nanwatch.watcher import Finish, Landed
from tests.seen import read

START = StartLine("life", 1, "", {}, clock_domain(), 0, 0.0, Totals())


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    writer = JournalWriter(Folder(tmp_path / "journal"), Labels("m", "0", "torch", "0", "h", "0", ""), START)
    made = Recorder(Ledger(Lifetimes("life")), writer)
    made.commit()
    return made


def lines(tmp_path: Path) -> int:
    (file,) = (tmp_path / "journal").iterdir()
    return len(file.read_bytes().splitlines())


def landed(ticket: int, request_id: str, values: int = 0) -> Landed:
    step = Step(Layout(1, [request_id]), time.monotonic_ns(), 5.0, None, ticket=ticket)
    charges = Charges([Charge(0, 1, values)], nan_rows=1, nan_values=values) if values else None
    return Landed(step, charges)


def test_clean_steps_wait_for_the_next_quarter_second(recorder: Recorder, tmp_path: Path) -> None:
    before = lines(tmp_path)
    recorder.deliver(landed(1, "a"))
    recorder.tick()
    assert lines(tmp_path) == before
    time.sleep(recorder_module.TICK_SECONDS)
    recorder.tick()
    assert lines(tmp_path) == before + 1
    assert read(tmp_path / "journal").totals.steps == 1


def test_a_new_corrupted_request_is_written_at_once(recorder: Recorder, tmp_path: Path) -> None:
    recorder.deliver(landed(1, "a", values=3))
    recorder.tick()
    assert read(tmp_path / "journal").ids == ["a"]


def test_two_lines_are_at_least_5_ms_apart(recorder: Recorder, tmp_path: Path) -> None:
    began = time.monotonic()
    for ticket in range(10):
        recorder.deliver(landed(ticket, f"r{ticket}", values=1))
        recorder.tick()
    assert time.monotonic() - began >= 9 * recorder_module.PAUSE_SECONDS
    assert read(tmp_path / "journal").corrupted == 10


def test_without_steps_there_is_a_line_a_second_the_heartbeat(recorder: Recorder, tmp_path: Path) -> None:
    before = lines(tmp_path)
    recorder.tick()
    assert lines(tmp_path) == before
    time.sleep(recorder_module.HEARTBEAT_SECONDS)
    recorder.tick()
    assert lines(tmp_path) == before + 1


def test_the_delay_from_observe_to_written_is_counted_once_per_corrupted_request(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.deliver(landed(1, "a", values=3))
    recorder.deliver(landed(2, "b", values=3))
    recorder.tick()
    recorder.commit()
    totals = read(tmp_path / "journal").totals
    assert sum(totals.delay_counts.values()) == 2
    assert 0 < totals.delay_sum_seconds < 1


def test_a_disk_that_refuses_is_one_line_in_the_log_and_nothing_is_lost_when_it_takes_again(
    recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with patch("nanwatch.journal.writer.os.write", side_effect=OSError(28, "No space left on device")):
        for ticket in range(5):
            recorder.deliver(landed(ticket, f"r{ticket}", values=1))
            recorder.commit()
            recorder.tick(last=True)
        assert read(tmp_path / "journal").corrupted == 0
    recorder.commit()
    seen = read(tmp_path / "journal")
    assert (seen.corrupted, len(seen.ids)) == (5, 5)
    assert seen.totals.journal_errors == 10
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "No space left on device" in errors[0]
    assert "writes its journal again" in caplog.text


def test_a_request_that_cannot_be_written_is_not_said_to_be(recorder: Recorder) -> None:
    with patch("nanwatch.journal.writer.os.write", side_effect=OSError(28, "No space left on device")):
        recorder.deliver(landed(1, "a", values=1))
        recorder.tick()
        assert not recorder.wait_until_written(1, 0.05)
    recorder.commit()
    assert recorder.wait_until_written(1, 0)


def test_where_the_journal_is_is_said_once_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nanwatch")
    writer = JournalWriter(Folder(tmp_path / "journal"), Labels("m", "0", "torch", "0", "h", "0", ""), START)
    made = Recorder(Ledger(Lifetimes("life")), writer)
    made.commit()
    made.commit()
    (file,) = (tmp_path / "journal").iterdir()
    assert [r.getMessage() for r in caplog.records] == [f"nanwatch writes its journal: {file}"]


def test_a_backlog_drops_clean_steps_and_keeps_corrupted_requests_and_finishes(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "MOST_ITEMS", 4)
    for ticket in range(10):
        recorder.deliver(landed(ticket, f"r{ticket}"))
    recorder.deliver(landed(10, "bad", values=1))
    recorder.deliver(Finish(11, ("bad",)))
    recorder.deliver(landed(12, "refused"))
    recorder.tick(last=True)
    totals = read(tmp_path / "journal").totals
    assert (totals.steps, totals.dropped_steps) == (5, {"backlog": 7})
    assert recorder.wait_until_written(12, 0.0)
    assert read(tmp_path / "journal").request("bad").finished


def test_the_engines_log_gets_one_warning_with_the_ids_and_the_rest_is_told_later(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    for ticket in range(3):
        recorder.deliver(landed(ticket, f"r{ticket}", values=1))
        recorder.tick()
    assert [r.getMessage() for r in caplog.records] == ["NaN in the logits of 'r0' (step 1, phase decode)"]


def test_what_was_never_written_is_said_at_the_end(
    recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    recorder.deliver(landed(1, "written", values=1))
    recorder.tick()
    monkeypatch.setattr(JournalWriter, "commit", full)
    for name in ("a", "b"):
        recorder.deliver(landed(2, name, values=1))
    recorder.stop()
    recorder.run()
    assert caplog.messages[-1] == (
        "nanwatch ends, and 2 corrupted requests were never written to its journal"
    )
