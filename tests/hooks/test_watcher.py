"""The watcher: in order, as soon as a step has landed, and never before."""

import threading
import time
from collections import deque
from typing import cast

import torch

from nanwatch.attribution import Layout
from nanwatch.observation import Step
from nanwatch.readback import Counts, Slot, SlotPool
from nanwatch.watcher import LOST_SECONDS, PARK_AFTER_SECONDS, Finish, Landed, Told, Watcher
from tests.hooks.slow_copy import SlowCopy


class Bench:
    """A watcher with a slow copy before it and a list behind it; `now_ns` is a fake clock."""

    def __init__(self) -> None:
        self.copy = SlowCopy()
        self.pool = SlotPool(pinned=False, most_rows=16, slots=8, copy=self.copy)
        self.pending: deque[Step | Told] = deque()
        self.got: list[Landed | Told] = []
        self.now_ns = 0
        self.faults: list[Exception] = []
        self.watcher = Watcher(
            self.pending, threading.Lock(), self.got.append, self.faults.append, lambda: self.now_ns
        )

    def observe(self, counts: list[int], ids: list[str]) -> Step:
        slot = self.pool.send(torch.tensor(counts, dtype=torch.int32))
        assert isinstance(slot, Slot)
        step = Step(Layout(len(counts), ids), self.now_ns, 0.0, slot)
        self.pending.append(step)
        return step

    def charged(self) -> list[dict[str, int]]:
        return [
            {(item.step.layout.request_ids or ())[c.request]: c.values for c in item.charges.requests}
            for item in self.got
            if isinstance(item, Landed) and item.charges is not None
        ]


def test_a_step_that_lands_after_the_next_was_observed_is_charged_to_its_own_requests() -> None:
    bench = Bench()
    bench.observe([0, 4], ["A", "B"])
    bench.observe([0, 0], ["C", "A"])
    assert bench.watcher.drain() == 0
    bench.copy.land()
    bench.copy.land()
    assert bench.watcher.drain() == 2
    assert bench.charged() == [{"B": 4}]


def test_a_step_that_lands_before_an_earlier_one_waits_for_its_turn() -> None:
    bench = Bench()
    bench.observe([1], ["A"])
    bench.pending.append(Finish(0, ("A",)))
    bench.observe([2], ["A"])
    bench.copy.land(1)
    assert bench.watcher.drain() == 0
    bench.copy.land(0)
    assert bench.watcher.drain() == 3
    assert [type(item) for item in bench.got] == [Landed, Finish, Landed]
    assert bench.charged() == [{"A": 1}, {"A": 2}]


def test_a_step_that_never_lands_is_dropped_as_lost_and_those_behind_it_go_on() -> None:
    bench = Bench()
    lost = bench.observe([1], ["A"])
    bench.observe([2], ["B"])
    bench.copy.land(1)
    bench.now_ns = int(LOST_SECONDS * 1e9) - 1
    assert bench.watcher.drain() == 0
    bench.now_ns += 2
    assert bench.watcher.drain() == 2
    assert lost.dropped == "lost"
    assert lost.land(threading.Lock())
    assert bench.charged() == [{"B": 2}]


def test_a_lost_step_that_lands_after_all_does_not_show_up_in_another_step() -> None:
    bench = Bench()
    bench.pool = SlotPool(pinned=False, most_rows=16, slots=2, copy=bench.copy)
    bench.observe([7], ["lost"])
    bench.now_ns = int(LOST_SECONDS * 1e9) + 1
    bench.watcher.drain()
    bench.observe([0], ["later"])
    bench.copy.land(0)
    assert bench.watcher.drain() == 0
    bench.copy.land(0)
    assert bench.watcher.drain() == 1
    assert bench.charged() == []


def test_a_step_stays_in_the_line_until_it_was_handed_on_so_that_none_can_pass_it() -> None:
    bench = Bench()
    in_line: list[int] = []
    bench.watcher._deliver = lambda _: in_line.append(len(bench.pending))
    for values in (0, 3):
        bench.observe([values], ["A"])
        bench.copy.land()
    bench.watcher.drain()
    assert in_line == [2, 1]


def _fail(_: object) -> None:
    raise ZeroDivisionError


def test_a_step_that_cannot_be_handed_on_is_a_fault_and_the_next_ones_are_looked_at() -> None:
    bench = Bench()
    deliver, bench.watcher._deliver = bench.watcher._deliver, _fail
    bench.observe([0], ["A"])
    bench.copy.land()
    bench.watcher.drain()
    bench.watcher._deliver = deliver
    bench.observe([3], ["B"])
    bench.copy.land()
    bench.watcher.drain()
    assert [type(fault) for fault in bench.faults] == [ZeroDivisionError]
    assert bench.charged() == [{"B": 3}]


def test_a_step_that_cannot_even_be_looked_at_is_dropped_and_not_met_again() -> None:
    bench = Bench()
    bench.observe([0], ["A"]).pending = cast("Counts", object())
    bench.observe([3], ["B"])
    bench.copy.land()
    bench.copy.land()
    assert bench.watcher._drain_safely() == 1
    assert bench.watcher._drain_safely() == 1
    assert len(bench.faults) == 1
    assert bench.charged() == [{"B": 3}]


def test_nothing_is_built_for_a_clean_step() -> None:
    bench = Bench()
    bench.observe([0, 0], ["A", "B"])
    bench.copy.land()
    bench.watcher.drain()
    assert bench.got == [Landed(bench.got[0].step, None)] if isinstance(bench.got[0], Landed) else False


def test_a_parked_watcher_wakes_for_the_next_step() -> None:
    bench = Bench()
    thread = threading.Thread(target=bench.watcher.run, daemon=True)
    thread.start()
    time.sleep(PARK_AFTER_SECONDS * 2)
    bench.observe([3], ["A"])
    bench.copy.land()
    bench.watcher.nudge()
    deadline = time.monotonic() + 20
    while not bench.got and time.monotonic() < deadline:
        time.sleep(0.005)
    bench.watcher.stop()
    thread.join(2)
    assert not thread.is_alive()
    assert bench.charged() == [{"A": 3}]


def test_a_watcher_that_parks_just_as_a_step_comes_in_does_not_sleep_on_it() -> None:
    bench = Bench()
    bench.observe([3], ["A"])
    thread = threading.Thread(target=bench.watcher._park, daemon=True)
    thread.start()
    thread.join(2)
    assert not thread.is_alive()


def test_a_stop_hands_on_what_has_landed_and_does_not_wait_for_what_has_not() -> None:
    bench = Bench()
    bench.observe([3], ["A"])
    bench.observe([4], ["B"])
    bench.copy.land(0)
    bench.watcher.stop()
    thread = threading.Thread(target=bench.watcher.run, daemon=True)
    thread.start()
    thread.join(2)
    assert not thread.is_alive()
    assert bench.charged() == [{"A": 3}]
