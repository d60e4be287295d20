"""Counts on their way to the host: a slot says by itself whether all of them are there."""

import gc
import weakref
from array import array

import pytest
import torch

from nanwatch.findings import Shape, add_up, counts_of, is_clean
from nanwatch.readback import MOST_PROGRAMS, Slot, SlotPool, bytes_of
from tests.hooks.slow_copy import SlowCopy


def counts(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def as_bytes(*values: int) -> bytes:
    return array("i", values).tobytes()


def sent(pool: SlotPool, values: torch.Tensor) -> Slot:
    slot = pool.send(values)
    assert isinstance(slot, Slot)
    return slot


def test_counts_made_on_the_cpu_are_there_at_once_and_are_a_copy() -> None:
    made = counts(0, 5)
    host = bytes_of(made)
    made.fill_(9)
    assert counts_of(host) == [0, 5]


def test_a_slot_has_not_landed_until_the_copy_came() -> None:
    copy = SlowCopy()
    slot = sent(SlotPool(pinned=False, most_rows=8, slots=2, copy=copy), counts(0, 0, 3))
    assert not slot.landed()
    copy.land()
    assert slot.landed()
    assert counts_of(slot.take()) == [0, 0, 3]


@pytest.mark.parametrize("missing", range(4))
def test_a_slot_with_any_row_missing_has_not_landed(missing: int) -> None:
    copy = SlowCopy()
    slot = sent(SlotPool(pinned=False, most_rows=8, slots=1, copy=copy), counts(0, 2**31 - 1, 255, 7))
    copy.partial(slice(0, missing))
    copy.partial(slice(missing + 1, 4))
    assert not slot.landed()
    copy.land()
    assert slot.landed()


@pytest.mark.parametrize(
    "pair", [(0x7FFFFFFF, 0x7FFFFFFF), (0x7FFFFFFF, 0x00FFFFFF), (0x00FFFFFF, 0x7F00FFFF)]
)
def test_counts_full_of_one_bits_are_not_taken_for_missing_ones(pair: tuple[int, int]) -> None:
    copy = SlowCopy()
    slot = sent(SlotPool(pinned=False, most_rows=8, slots=1, copy=copy), counts(*pair))
    copy.land()
    assert slot.landed()


def test_a_slot_that_is_used_again_does_not_show_the_counts_of_the_step_before() -> None:
    copy = SlowCopy()
    pool = SlotPool(pinned=False, most_rows=8, slots=1, copy=copy)
    first = sent(pool, counts(1, 2, 3))
    copy.land()
    first.take()
    second = sent(pool, counts(4, 5))
    assert not second.landed()
    copy.land()
    assert counts_of(second.take()) == [4, 5]


def test_without_a_free_slot_a_step_is_dropped_and_a_taken_one_makes_room() -> None:
    copy = SlowCopy()
    pool = SlotPool(pinned=False, most_rows=8, slots=2, copy=copy)
    first = sent(pool, counts(1))
    sent(pool, counts(2))
    assert pool.send(counts(3)) == "slots"
    copy.land(0)
    first.take()
    assert isinstance(pool.send(counts(4)), Slot)


def test_more_rows_than_a_slot_holds_are_dropped_and_no_slot_is_lost() -> None:
    pool = SlotPool(pinned=False, most_rows=2, slots=1)
    assert pool.send(counts(1, 2, 3)) == "rows"
    assert isinstance(pool.send(counts(1, 2)), Slot)


def test_the_source_lives_until_its_slot_was_read_and_is_let_go_on_the_engines_thread() -> None:
    copy = SlowCopy()
    pool = SlotPool(pinned=False, most_rows=8, slots=2, copy=copy)
    source = counts(1, 2)
    gone = weakref.ref(source)
    slot = sent(pool, source)
    copy.land()
    del source
    gc.collect()
    assert gone() is not None
    slot.take()
    assert gone() is not None  # freeing device memory may make a CUDA call, and the watcher makes none
    pool.send(counts(3))
    assert gone() is None


def test_an_abandoned_slot_is_used_again_only_when_its_copy_has_come_after_all() -> None:
    copy = SlowCopy()
    pool = SlotPool(pinned=False, most_rows=8, slots=1, copy=copy)
    sent(pool, counts(7)).abandon()
    assert pool.send(counts(1)) == "slots"
    copy.land()
    again = sent(pool, counts(1, 2))
    assert not again.landed()
    copy.land()
    assert counts_of(again.take()) == [1, 2]


class Stream:
    """Stands for a GPU's stream and the events in it: says what was put there, in order."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self.order.append("copy")

    def record(self) -> None:
        self.order.append("event")

    def synchronize(self) -> None:
        self.order.append("wait")


def test_where_somebody_may_wait_an_event_stands_behind_the_copy() -> None:
    stream = Stream()
    pool = SlotPool(pinned=False, most_rows=8, slots=1, copy=stream.copy, make_event=lambda: stream)
    slot = sent(pool, counts(1))
    slot.wait()
    assert stream.order == ["copy", "event", "wait"]


def test_where_nobody_waits_there_is_no_event() -> None:
    stream = Stream()
    slot = sent(SlotPool(pinned=False, most_rows=8, slots=1, copy=stream.copy), counts(1))
    slot.wait()
    assert stream.order == ["copy"]


def test_a_kernel_writes_straight_into_a_slot_of_several_cells_a_row() -> None:
    pool = SlotPool(pinned=False, most_rows=8, slots=1)
    slot = pool.slot(Shape(rows=2, parts=2, planes=3))
    assert isinstance(slot, Slot)
    slot.memory[:11] = torch.tensor([0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    assert not slot.landed()
    slot.memory[11] = 1
    assert slot.landed()
    assert add_up(slot.take(), slot.shape) == (as_bytes(2, 0), as_bytes(0, 1), as_bytes(0, 0))


def test_a_step_of_as_many_rows_as_a_slot_holds_fits_in_as_many_parts_as_a_kernel_asks_for() -> None:
    pool = SlotPool(pinned=False, most_rows=8, slots=1)
    slot = pool.slot(Shape(rows=8, parts=MOST_PROGRAMS // 8 + 1, planes=3))
    assert isinstance(slot, Slot)
    assert slot.shape.cells <= slot.memory.numel()


def test_a_pool_made_inside_inference_mode_works_outside_it() -> None:
    with torch.inference_mode():
        pool = SlotPool(pinned=False, most_rows=4, slots=1)
    slot = sent(pool, counts(0, 1))
    assert counts_of(slot.take()) == [0, 1]


def test_a_step_of_no_rows_has_landed() -> None:
    slot = sent(SlotPool(pinned=False, most_rows=4, slots=1), counts())
    assert slot.landed()
    assert slot.take() == b""


def test_clean_means_that_no_row_held_a_nan() -> None:
    assert is_clean(bytes_of(counts(0, 0)))
    assert not is_clean(bytes_of(counts(0, 1)))
    assert not is_clean(bytes_of(counts(0x01000000, 0)))
