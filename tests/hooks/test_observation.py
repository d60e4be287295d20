"""Asking for a step's result: bounded waits, and errors that say what did not come."""

import threading
import time

import pytest
import torch

from nanwatch import NanLogitsError, Observation
from nanwatch.attribution import Layout
from nanwatch.observation import Step
from nanwatch.readback import Slot, SlotPool
from tests.hooks.slow_copy import SlowCopy


class Journal:
    """Stands for the pipeline behind an observation: written, or a disk that is full."""

    def __init__(self, *, written: bool = True) -> None:
        self.landing = threading.Lock()
        self.written = written

    def wait_until_written(self, ticket: int, timeout: float) -> bool:
        return self.written


def observed(copy: SlowCopy, values: list[int], owners: list[int] | None = None) -> Step:
    pool = SlotPool(pinned=False, most_rows=8, slots=2, copy=copy)
    slot = pool.send(torch.tensor(values, dtype=torch.int32))
    assert isinstance(slot, Slot)
    step = Step(Layout(len(values), ["a", "b"]), time.monotonic_ns(), time.time(), slot)
    if owners is not None:
        sent = pool.send(torch.tensor(owners, dtype=torch.int32) + 1)
        assert isinstance(sent, Slot)
        step.owners = sent
    return step


def test_a_result_waits_for_counts_that_land_late() -> None:
    copy = SlowCopy()
    observation = Observation(observed(copy, [0, 5]), Journal())
    assert not observation.done()
    threading.Timer(0.05, copy.land).start()
    assert observation.result(timeout=20) == {"a": 0, "b": 5}
    assert observation.done()


def test_a_result_that_does_not_come_times_out_and_can_be_asked_for_again() -> None:
    copy = SlowCopy()
    observation = Observation(observed(copy, [0, 5]), Journal())
    with pytest.raises(TimeoutError, match=r"counts of 2 rows did not reach the host within 0\.02 s"):
        observation.result(timeout=0.02)
    copy.land()
    assert observation.result() == {"a": 0, "b": 5}


def test_a_corrupted_request_that_cannot_be_written_times_out_naming_the_journal() -> None:
    copy = SlowCopy()
    observation = Observation(observed(copy, [0, 5]), Journal(written=False))
    copy.land()
    with pytest.raises(TimeoutError, match="not written to the journal within"):
        observation.result(timeout=0.02)


def test_a_clean_result_does_not_wait_for_the_journal() -> None:
    copy = SlowCopy()
    observation = Observation(observed(copy, [0, 0]), Journal(written=False))
    copy.land()
    assert observation.result() == {"a": 0, "b": 0}


def test_under_fail_fast_the_result_raises_with_the_corrupted_ids_only() -> None:
    copy = SlowCopy()
    observation = Observation(observed(copy, [0, 5]), Journal(), fail_fast=True)
    copy.land()
    with pytest.raises(NanLogitsError, match=r"NaNs detected in logits: \{'b': 5\}"):
        observation.result()


def test_a_dropped_step_has_an_empty_result_and_says_why() -> None:
    step = Step(Layout(1, ["a"]), 0, 0.0, None, dropped="slots")
    observation = Observation(step, Journal())
    assert (observation.result(), observation.dropped) == ({}, "slots")


def test_owners_that_only_the_device_knows_are_waited_for_and_map_the_rows() -> None:
    copy = SlowCopy()
    step = observed(copy, [1, 2, 4], owners=[1, -1, 1])
    observation = Observation(step, Journal())
    copy.land(0)
    assert not observation.done()
    copy.land(0)
    assert observation.result() == {"a": 0, "b": 5}


def test_owners_that_do_not_fit_leave_the_rows_unattributed_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    copy = SlowCopy()
    step = observed(copy, [1, 2], owners=[0, 7])
    copy.land(0)
    copy.land(0)
    assert Observation(step, Journal()).result() == {}
    assert step.layout == Layout(2, None)
    assert "row owners do not fit" in caplog.text
