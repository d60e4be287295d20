"""What the lines of one file add up to."""

import json

import pytest

from nanwatch.journal.fold import Fold, ForeignFileError
from nanwatch.journal.line import FileLine, ReportLine, VersionError, encode_file, encode_report, encode_start
from nanwatch.journal.totals import Totals
from tests.engine import LABELS, corrupted, start_line

FIRST = encode_file(FileLine("f1", LABELS))


def report(totals: Totals, *ids: str, rows: int = 1, finished: bool = False) -> bytes:
    requests = tuple(corrupted(name, rows=rows, finished=finished) for name in ids)
    return encode_report(ReportLine(1, 2.0, totals, corrupted=requests))


def folded(*lines: bytes) -> Fold:
    fold = Fold()
    for line in lines:
        fold.take(line)
    return fold


def test_totals_are_the_greatest_of_each_cell() -> None:
    """A line that says less takes nothing back."""
    fold = folded(FIRST, report(Totals(steps=5, rows=1)), report(Totals(steps=3, rows=9)))
    assert fold.totals == Totals(steps=5, rows=9)


def test_a_start_line_alone_holds_what_earlier_lives_counted() -> None:
    """A life that died before its first report loses nothing of theirs."""
    fold = folded(FIRST, encode_start(start_line("life-2", totals=Totals(steps=7))))
    assert fold.totals == Totals(steps=7)
    assert fold.start is not None
    assert fold.last == fold.start
    assert fold.start.life == "life-2"


def test_a_later_entry_of_a_request_replaces_the_earlier_one() -> None:
    """In the order of their first appearance."""
    fold = folded(FIRST, report(Totals(), "a", "b"), report(Totals(), "a", rows=9, finished=True))
    assert [(r.request_id, r.rows, r.finished) for r in fold.corrupted.values()] == [
        ("a", 9, True),
        ("b", 1, False),
    ]


def test_what_does_not_parse_is_skipped() -> None:
    """... and counted; a first line once more, and a kind of tomorrow, say nothing."""
    fold = folded(FIRST, b"garbage\n", FIRST, b'{"kind":"of_tomorrow"}\n', report(Totals(steps=1)))
    assert (fold.totals.steps, fold.skipped_lines) == (1, 1)
    assert fold.file == FileLine("f1", LABELS)


def test_taking_a_line_returns_what_it_said() -> None:
    """A reader follows a file line by line."""
    fold = Fold()
    assert fold.take(FIRST) == FileLine("f1", LABELS)
    assert fold.take(b"garbage\n") is None
    assert isinstance(fold.take(report(Totals())), ReportLine)


@pytest.mark.parametrize("first", [b"garbage\n", b"\n", report(Totals()), b'{"kind":"of_tomorrow"}\n'])
def test_a_first_line_that_is_not_ours_makes_the_file_foreign(first: bytes) -> None:
    """Nothing after it counts, whatever it looks like."""
    with pytest.raises(ForeignFileError, match="the first line is not"):
        folded(first)


def test_a_newer_version_is_told_apart_from_garbage() -> None:
    """Its message names both versions."""
    newer = json.dumps(json.loads(FIRST) | {"version": 2}).encode() + b"\n"
    with pytest.raises(VersionError, match="journal version 2, this nanwatch reads 1 to 1"):
        folded(newer)
