"""The order of things, whichever way a step takes: clean ones made on the CPU pass the watcher by.

Where a call of ours is replaced by one that ends a request first, it stands for Python's garbage collector,
which may run in the midst of any such call and finalize what ends a request.
"""

import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanwatch import NanProbe
from nanwatch.attribution import Layout
from nanwatch.lifetimes import Lifetimes, Sighting
from nanwatch.recorder import Recorder
from nanwatch.watcher import Finish, Landed, Watcher
from tests.seen import read

CLEAN = torch.zeros(1, dtype=torch.int32)
BAD = torch.ones(1, dtype=torch.int32)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["clean", "bad", "finish"])), max_size=60
)


@settings(max_examples=25, deadline=None)
@given(OPERATIONS)
def test_requests_are_told_apart_as_if_each_step_had_been_waited_for(
    operations: list[tuple[str, str]],
) -> None:
    book, expected = Lifetimes("life"), []
    requests = 0
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANWATCH_JOURNAL", folder + "/journal")
        with NanProbe() as probe:
            for step, (name, what) in enumerate(operations):
                if what == "finish":
                    probe.finish([name])
                    book.finish([name])
                    continue
                probe.observe_counts(BAD if what == "bad" else CLEAN, [name])
                requests += book.see([name], step)
                if what == "bad":
                    expected.append((name, book.charge(name, Sighting(step, 0.0, 0), "decode", 1, 1).n))
        seen = read(Path(folder, "journal"))
    assert [(r.request_id, r.n) for r in seen.requests] == list(dict.fromkeys(expected))
    assert seen.totals.requests == requests


def test_neither_clean_steps_nor_ends_wake_the_watcher(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would poll on for a while, and take the interpreter from a host-bound engine."""
    woken: list[Watcher] = []
    nudge = Watcher.nudge

    def noting(watcher: Watcher) -> None:
        woken.append(watcher)
        nudge(watcher)

    monkeypatch.setattr(Watcher, "nudge", noting)
    with NanProbe() as probe:
        for name in "abc":
            probe.observe_clean(1, [name])
            probe.observe_counts(CLEAN, [name])
            probe.finish([name])
        assert woken == []
        probe.observe_counts(BAD, ["d"])
        assert len(woken) == 1
    assert read(journal).totals.requests == 4


def test_everything_reaches_the_recorder_in_the_order_of_the_calls(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []
    deliver, deliver_clean = Recorder.deliver, Recorder.deliver_clean

    def noting(recorder: Recorder, item: Landed | Finish) -> None:
        if not (isinstance(item, Landed) and item.step.found_nothing):  # those are delivered as clean
            got.append(item.step.ticket if isinstance(item, Landed) else item.ticket)
        deliver(recorder, item)

    def noting_clean(recorder: Recorder, layout: Layout, ticket: int, wall_seconds: float) -> None:
        got.append(ticket)
        deliver_clean(recorder, layout, ticket, wall_seconds)

    monkeypatch.setattr(Recorder, "deliver", noting)
    monkeypatch.setattr(Recorder, "deliver_clean", noting_clean)
    with NanProbe() as probe:
        for step in range(3000):
            probe.observe_counts(BAD if step % 7 == 0 else CLEAN, ["a"])
            if step % 5 == 0:
                probe.finish(["a"])
    assert all(earlier < later for earlier, later in pairwise(got))
    assert len(got) == 3600


def ending_first(
    call: Callable[..., Any], probe: NanProbe, monkeypatch: pytest.MonkeyPatch, where: type
) -> None:
    """Let the next call end the request `gone` in its midst."""
    collects = iter([True])

    def replaced(*args: Any, **kwargs: Any) -> Any:
        if next(collects, False):
            probe.finish(["gone"])
        return call(*args, **kwargs)

    monkeypatch.setattr(where, call.__name__, replaced)


@pytest.mark.parametrize(
    ("where", "call", "step"),
    [
        (Recorder, Recorder.deliver_clean, lambda probe: probe.observe_clean(1, ["a"])),
        (Recorder, Recorder.deliver, lambda probe: probe.observe_counts(CLEAN, ["a"])),
        (Watcher, Watcher.nudge, lambda probe: probe.observe_counts(BAD, ["a"])),
        (Watcher, Watcher.nudge, lambda probe: probe.count_contained(aborted_requests=1)),
        (threading.Thread, threading.Thread.start, lambda probe: probe.observe_clean(1, ["a"])),
    ],
)
def test_a_request_that_garbage_collection_ends_in_the_midst_of_a_step_is_ended_after_it(
    where: type,
    call: Callable[..., Any],
    step: Callable[[NanProbe], object],
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread would wait for a lock that it holds itself, and the engine with it."""
    probe = NanProbe()

    def engine() -> None:
        with monkeypatch.context() as patch:
            ending_first(call, probe, patch, where)
            step(probe)
        for _ in range(2):
            probe.observe_counts(BAD, ["gone"])
            probe.finish(["gone"])

    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    probe.close()
    seen = read(journal)
    assert [(r.request_id, r.n, r.finished) for r in seen.requests if r.request_id == "gone"] == [
        ("gone", 0, True),
        ("gone", 1, True),
    ]
