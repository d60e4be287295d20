"""Clean steps in a row become one item, and nothing is lost, counted twice or moved, whenever it is taken."""

import threading
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanwatch.attribution import Charges, Layout
from nanwatch.backlog import Backlog, CleanSteps, _Run
from nanwatch.observation import Step
from nanwatch.watcher import Finish, Landed, Told

A, B = Layout(1, ["a"]), Layout(1, ["b"])


def bad(ticket: int) -> Landed:
    return Landed(Step(A, 0, 0.0, None, ticket=ticket), Charges(nan_rows=1))


def add_all(backlog: Backlog, items: Iterable[Layout | str], first: int = 1) -> None:
    for ticket, item in enumerate(items, first):
        if isinstance(item, Layout):
            backlog.add_clean(item, ticket, float(ticket))
        else:
            backlog.add(bad(ticket) if item == "bad" else Finish(ticket, ("a",)))


def test_clean_steps_of_one_layout_are_one_item() -> None:
    backlog = Backlog()
    add_all(backlog, [A, A, A, "end", B, B, "bad", B])
    assert len(backlog) == 5
    assert list(backlog.take()) == [
        CleanSteps(A, 3, 3, 3.0),
        Finish(4, ("a",)),
        CleanSteps(B, 2, 6, 6.0),
        bad(7),
        CleanSteps(B, 1, 8, 8.0),
    ]
    assert len(backlog) == 0
    assert list(backlog.take()) == []


def test_equal_layouts_that_are_two_objects_are_not_joined() -> None:
    """Comparing them would cost more than the item that it saves."""
    backlog = Backlog()
    add_all(backlog, [A, Layout(1, ["a"])])
    assert [item.steps for item in backlog.take() if isinstance(item, CleanSteps)] == [1, 1]


def test_a_run_that_was_taken_from_grows_on_and_ends_before_what_follows() -> None:
    backlog = Backlog()
    add_all(backlog, [A, A])
    assert list(backlog.take()) == [CleanSteps(A, 2, 2, 2.0)]
    add_all(backlog, [A, A, A, "end"], first=3)
    assert list(backlog.take()) == [CleanSteps(A, 3, 5, 5.0), Finish(6, ("a",))]
    add_all(backlog, [A], first=7)
    assert list(backlog.take()) == [CleanSteps(A, 1, 7, 7.0)]


def expanded(items: Iterable[Landed | Told | CleanSteps], before: int = 0) -> list[Layout | str]:
    """One entry for each step and end; tickets go from 1 on, `before` of them came earlier."""
    entries: list[Layout | str] = []
    for item in items:
        if isinstance(item, CleanSteps):
            entries += [item.layout] * item.steps
            ticket = item.ticket
        else:
            entries.append("bad" if isinstance(item, Landed) else "end")
            ticket = item.step.ticket if isinstance(item, Landed) else item.ticket
        assert ticket == before + len(entries)
    return entries


@given(st.lists(st.sampled_from([A, B, "bad", "end", "take"]), max_size=80))
def test_whenever_it_is_taken_everything_comes_once_and_in_order(items: list[Layout | str]) -> None:
    backlog = Backlog()
    got: list[Layout | str] = []
    expected: list[Layout | str] = []
    for item in items:
        if item == "take":
            got += expanded(backlog.take(), len(got))
        else:
            expected.append(item)
            add_all(backlog, [item], first=len(expected))
    got += expanded(backlog.take(), len(got))
    assert got == expected


def test_what_is_added_right_after_a_run_was_looked_at_is_not_overtaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backlog = Backlog()
    add_all(backlog, [A])
    take, overtaken = _Run.take, iter([True])

    def take_and_be_overtaken(run: _Run) -> CleanSteps | None:
        taken = take(run)
        if next(overtaken, False):
            add_all(backlog, [A, "end"], first=2)
        return taken

    monkeypatch.setattr(_Run, "take", take_and_be_overtaken)
    got = expanded(backlog.take())
    assert got + expanded(backlog.take(), len(got)) == [A, A, "end"]


def test_one_thread_adds_while_another_takes() -> None:
    backlog = Backlog()
    items = ([A] * 49 + ["end"] + [A, B] + [B] * 47 + ["bad"]) * 2000
    adder = threading.Thread(target=add_all, args=(backlog, items))
    adder.start()
    got: list[Layout | str] = []
    while adder.is_alive():
        got += expanded(backlog.take(), len(got))
    got += expanded(backlog.take(), len(got))
    assert got == items
