"""What becomes of a step by where its logits are: a fake stands for the GPU, the rest is real."""

import logging
import math
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nanwatch import NanLogitsError, NanProbe, count_nans_per_row, inspect_rows, stop
from nanwatch.attribution import Layout
from nanwatch.findings import CLEAN, counts_of
from nanwatch.observation import Step
from tests.hooks.fake_gpu import FakeGpu, on_gpu
from tests.seen import read

INF, NAN = math.inf, math.nan
CLEAN_ROWS = [[0.0, 1.0], [2.0, 3.0]]
BAD_ROWS = [[0.0, NAN], [INF, 3.0]]


def probe_on(gpu: FakeGpu, *, events: bool = False) -> NanProbe:
    probe = NanProbe()
    probe._sight = gpu.sight(events=events)
    return probe


def looked_at(gpu: FakeGpu, logits: Tensor) -> Step:
    """Look at logits and land what was found."""
    step = step_of(logits.shape[0])
    gpu.sight().look(step, logits, None)
    while gpu.copy.waiting:
        gpu.copy.land()
    assert step.land(threading.Lock())
    return step


def found_in(step: Step) -> list[tuple[int, int, bool]]:
    assert step.counts is not None
    planes = [counts_of(plane) for plane in (step.counts, step.posinf, step.masked)]
    return [(nans, posinf, bool(masked)) for nans, posinf, masked in zip(*planes, strict=True)]


def step_of(rows: int) -> Step:
    return Step(Layout(rows, [f"r{i}" for i in range(rows)]), 0, 0.0, None)


def test_a_clean_step_on_the_cpu_keeps_nothing_and_needs_no_slot() -> None:
    gpu, step = FakeGpu(), step_of(2)
    gpu.sight().look(step, torch.tensor(CLEAN_ROWS), None)
    assert (step.counts, step.posinf, step.masked, step.pending, gpu.made) == (CLEAN, CLEAN, CLEAN, None, 0)


def test_what_the_rows_hold_on_the_cpu_is_in_the_step_at_once() -> None:
    step = step_of(3)
    FakeGpu().sight().look(step, torch.tensor([*BAD_ROWS, [-INF, -INF]]), None)
    assert step.counts is not None
    assert [counts_of(plane) for plane in (step.counts, step.posinf, step.masked)] == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]


def test_without_a_kernel_the_logits_of_a_gpu_go_through_one_copy_of_all_that_was_found() -> None:
    gpu, step = FakeGpu(), step_of(2)
    gpu.sight().look(step, on_gpu(BAD_ROWS), None)
    assert len(gpu.copy.waiting) == 1
    assert not step.land(threading.Lock())
    gpu.copy.land()
    assert step.land(threading.Lock())
    assert step.counts is not None
    assert [counts_of(plane) for plane in (step.counts, step.posinf, step.masked)] == [[1, 0], [0, 1], [0, 0]]


def test_slots_are_made_once(journal: Path) -> None:
    gpu = FakeGpu()
    with probe_on(gpu) as probe:
        for _ in range(3):
            probe.observe(on_gpu(CLEAN_ROWS), ["a", "b"])
    assert gpu.made == 1


def test_more_rows_than_a_slot_holds_are_dropped_and_counted(journal: Path) -> None:
    gpu = FakeGpu(most_rows=1)
    with probe_on(gpu) as probe:
        observation = probe.observe(on_gpu(BAD_ROWS), ["a", "b"])
        assert observation.dropped == "rows"
        assert observation.result() == {}
    assert read(journal).totals.dropped_steps == {"rows": 1}


@pytest.mark.parametrize("counted", [False, True], ids=["observe", "observe_counts"])
def test_a_capturing_stream_is_refused_with_a_reason_and_nothing_is_recorded_in_it(
    journal: Path, caplog: pytest.LogCaptureFixture, *, counted: bool
) -> None:
    gpu = FakeGpu()
    gpu.capturing = True
    with probe_on(gpu) as probe, caplog.at_level(logging.WARNING, "nanwatch"):
        for _ in range(2):
            if counted:
                observation = probe.observe_counts(on_gpu([0, 1], torch.int32), ["a", "b"])
            else:
                observation = probe.observe(on_gpu(BAD_ROWS), ["a", "b"])
            assert (observation.dropped, observation.result()) == ("capture", {})
    assert (gpu.made, gpu.copy.waiting) == (0, [])
    assert read(journal).totals.dropped_steps == {"capture": 2}
    assert caplog.text.count("captures a CUDA graph") == 1


def test_a_capture_that_serves_nobody_misses_nothing(journal: Path) -> None:
    gpu = FakeGpu()
    gpu.capturing = True
    with probe_on(gpu) as probe:
        assert probe.observe(on_gpu(BAD_ROWS), [], phase="warmup").dropped == "capture"
    assert read(journal).totals.dropped_steps == {}


def test_counts_that_a_graph_made_are_served_after_its_replay(journal: Path) -> None:
    gpu = FakeGpu()
    counts = on_gpu([0, 5], torch.int32)
    with probe_on(gpu) as probe:
        observation = probe.observe_counts(counts, ["a", "b"])
        gpu.copy.land()
        assert observation.result() == {"a": 0, "b": 5}


def test_what_inspect_rows_found_can_be_observed_too(journal: Path) -> None:
    with NanProbe() as probe:
        observation = probe.observe_counts(
            inspect_rows(torch.tensor([*BAD_ROWS, [-INF, -INF]])), ["a", "b", "c"]
        )
        assert observation.result() == {"a": 1, "b": 0, "c": 0}
    totals = read(journal).totals
    assert (totals.nan_rows, totals.posinf_rows, totals.fully_masked_rows) == (1, 1, 1)
    assert totals.corrupted_requests == 1


def test_rows_with_inf_or_nothing_but_minus_inf_are_counted_and_corrupt_no_request(journal: Path) -> None:
    logits = torch.tensor([[0.0, INF], [-INF, -INF], [-INF, 0.0], [INF, INF]])  # the last row is padding
    with NanProbe() as probe:
        assert probe.observe(logits, ["a", "b", "c"]).result() == {"a": 0, "b": 0, "c": 0}
    totals = read(journal).totals
    assert (totals.posinf_rows, totals.fully_masked_rows) == (1, 1)
    assert (totals.corrupted_requests, totals.nan_rows) == (0, 0)


def test_a_mistake_in_the_arguments_is_told_before_anything_is_begun(journal: Path) -> None:
    gpu = FakeGpu()
    with probe_on(gpu) as probe:
        with pytest.raises(ValueError, match="3 request ids for 2 logits rows"):
            probe.observe(on_gpu(CLEAN_ROWS), ["a", "b", "c"])
        assert gpu.copy.waiting == []


def test_owners_that_only_the_device_knows_go_ahead_of_the_counts(journal: Path) -> None:
    gpu = FakeGpu()
    with probe_on(gpu) as probe:
        observation = probe.observe(
            on_gpu([[NAN], [0.0], [NAN]]), ["a", "b"], row_owner=on_gpu([1, 0, -1], torch.int32)
        )
        gpu.copy.land()
        gpu.copy.land()
        assert observation.result() == {"a": 0, "b": 1}


def test_owners_whose_counts_find_no_place_give_their_slot_back(journal: Path) -> None:
    gpu = FakeGpu(slots=1)
    owners = on_gpu([0, 1], torch.int32)
    with probe_on(gpu) as probe:
        for _ in range(3):
            assert probe.observe(on_gpu(CLEAN_ROWS), ["a", "b"], row_owner=owners).dropped == "slots"
            gpu.copy.land()
        assert probe.observe(on_gpu(CLEAN_ROWS), ["a", "b"]).dropped is None


# Fail-fast waits on an event; nobody else ever does.


def test_without_fail_fast_there_is_no_event_at_all(journal: Path) -> None:
    gpu = FakeGpu()
    with probe_on(gpu) as probe:
        probe.observe(on_gpu(CLEAN_ROWS), ["a", "b"])
        gpu.copy.land()
        probe.flush()
    assert gpu.order == []


def test_fail_fast_sleeps_on_the_event_and_raises_in_the_step(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    gpu = FakeGpu()
    with probe_on(gpu, events=True) as probe:
        probe.observe(on_gpu(CLEAN_ROWS), ["a", "b"])
        with pytest.raises(NanLogitsError, match=r"\{'a': 1\}"):
            probe.observe(on_gpu(BAD_ROWS), ["a", "b"])
    assert gpu.order == ["record", "wait", "record", "wait"]


def test_after_a_device_assert_the_counts_that_landed_are_reported_all_the_same(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy came before the assert; only the event raises."""
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    monkeypatch.setattr(stop, "LANDING_SECONDS", 5.0)
    gpu = FakeGpu()
    gpu.broken = True
    with probe_on(gpu, events=True) as probe:
        land = threading.Timer(0.05, gpu.copy.land)
        land.start()
        with pytest.raises(NanLogitsError, match=r"\{'a': 1\}"):
            probe.observe(on_gpu(BAD_ROWS), ["a", "b"])
        land.join()
    assert read(journal).ids == ["a"]


def test_a_tensor_on_another_device_is_counted_without_a_look_at_its_values() -> None:
    counts = inspect_rows(torch.empty(3, 5, device="meta"))
    assert counts.nan.shape == counts.posinf.shape == counts.fully_masked.shape == (3,)
    assert count_nans_per_row(torch.empty(3, 5, device="meta")).device.type == "meta"
