"""Steps and finishes in, totals and corrupted requests out."""

from array import array

from nanwatch.attribution import Charge, Charges, Layout
from nanwatch.ledger import Ledger
from nanwatch.lifetimes import Lifetimes
from nanwatch.observation import Step
from nanwatch.watcher import Finish, Landed


def step(*ids: str, rows: int | None = None, dropped: str | None = None) -> Step:
    return Step(Layout(len(ids) if rows is None else rows, ids), 0, 7.0, None, dropped=dropped)


def ledger() -> Ledger:
    return Ledger(Lifetimes("life"))


def test_a_dropped_step_is_no_step_but_its_requests_are_requests() -> None:
    book = ledger()
    book.take(Landed(step("a", "b", dropped="lost"), None), 0)
    assert (book.totals.steps, book.totals.rows, book.totals.requests) == (0, 0, 2)
    assert book.totals.dropped_steps == {"lost": 1}
    assert book.last_step_seconds == 0.0


def test_padding_is_left_out_of_rows() -> None:
    book = ledger()
    book.take(Landed(step("a", rows=8), None), 0)
    assert (book.totals.rows, book.last_step_seconds) == (1, 7.0)


def test_rows_with_inf_are_counted_apart_padding_left_out_and_corrupt_nothing() -> None:
    book = ledger()
    looked_at = step("a", "b", rows=4)
    looked_at.posinf = array("i", [7, 0, 1, 0]).tobytes()  # rows 2 and 3 are padding
    looked_at.masked = array("i", [0, 1, 0, 1]).tobytes()
    changes = book.take(Landed(looked_at, None), 0)
    unnamed = Step(Layout(2, None), 0, 7.0, None, posinf=array("i", [1, 1]).tobytes())
    book.take(Landed(unnamed, None), 0)
    assert (book.totals.posinf_rows, book.totals.fully_masked_rows) == (3, 1)
    assert (book.totals.corrupted_requests, book.totals.nan_rows, changes.new) == (0, 0, [])


def test_a_corrupted_request_is_new_once_and_changes_after_that() -> None:
    book = ledger()
    bad = Charges([Charge(0, 1, 3)], nan_rows=1, nan_values=3)
    first = book.take(Landed(step("a"), bad), 5)
    second = book.take(Landed(step("a"), bad), 6)
    ended = book.take(Finish(0, ("a",)), 7)
    assert [len(c.new) for c in (first, second, ended)] == [1, 0, 0]
    assert [(r.values, r.finished) for c in (second, ended) for r in c.known] == [(6, False), (6, True)]
    assert (book.totals.corrupted_requests, book.totals.nan_values) == (1, 6)
    assert first.new[0].first_seen_boot_ns == 5
