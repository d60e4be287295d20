"""The probe's own contract: arguments, waiting, the caller's queue, and what happens when it is off."""

import gc
import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nanwatch import NanLogitsError, NanProbe, Observation, lifecycle
from nanwatch.settings import SettingsError
from tests.seen import read


def logits(rows: int = 1, nans: dict[int, int] | None = None) -> torch.Tensor:
    """Clean logits [rows, 32] with `nans[row]` NaNs planted in a row."""
    made = torch.randn(rows, 32)
    for row, count in (nans or {}).items():
        made[row, :count] = float("nan")
    return made


def test_a_new_probe_has_a_file_with_every_total_at_zero(journal: Path) -> None:
    with NanProbe():
        seen = read(journal)
        assert seen.sources == 1
        assert (seen.totals.steps, seen.totals.requests, seen.corrupted) == (0, 0, 0)


def test_no_thread_runs_before_the_first_step_and_none_after_close(journal: Path) -> None:
    before = set(threading.enumerate())  # those of other tests' adapters among them

    def names() -> set[str]:
        new = set(threading.enumerate()) - before
        return {thread.name for thread in new if thread.name.startswith("nanwatch")}

    probe = NanProbe()
    assert names() == set()
    probe.observe(logits(), ["a"])
    assert names() == {"nanwatch-watcher", "nanwatch-recorder"}
    probe.close()
    assert names() == set()
    assert read(journal).totals.steps == 1


def test_close_writes_all_that_was_observed(journal: Path) -> None:
    probe = NanProbe()
    for step in range(500):
        probe.observe(logits(2, {1: 3} if step == 250 else None), ["a", "b"])
    probe.close()
    seen = read(journal)
    assert (seen.totals.steps, seen.totals.rows, seen.totals.requests) == (500, 1000, 2)
    assert (seen.ids, seen.request("b").first_step) == (["b"], 251)


def test_what_was_done_about_a_nan_is_written_in_its_turn(journal: Path) -> None:
    with NanProbe() as probe:  # a process that sees no step of its own may say so too
        probe.count_contained(aborted_requests=1, kv_poisoned_blocks=3)
        probe.count_contained(aborted_requests=1, quarantined_blocks=4, released_blocks=0)
        assert probe.flush()
        totals = read(journal).totals
        contained = (totals.aborted_requests, totals.kv_poisoned_blocks)
        assert contained == (2, 3)
        assert (totals.quarantined_blocks, totals.released_blocks) == (4, 0)


@pytest.mark.parametrize("cells", [{"sunk_ships": 1}, {"steps": 1}, {"aborted_requests": -1}])
def test_what_the_journal_has_no_cell_for_is_the_callers_mistake(
    cells: dict[str, int], journal: Path
) -> None:
    with NanProbe() as probe, pytest.raises(ValueError, match="each 0 or more"):
        probe.count_contained(**cells)


def test_abort_is_taken_where_whoever_makes_the_probe_can_end_one_request(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_ON_NAN", "abort")
    with NanProbe(can_abort=True) as probe:
        assert probe.aborts
        probe.observe(logits(2, {1: 3}), ["a", "b"])  # never raises: that is fail-fast's
        assert probe.flush()
    assert read(journal).ids == ["b"]
    monkeypatch.setenv("NANWATCH_ON_NAN", "observe")
    with NanProbe(can_abort=True) as probe:
        assert not probe.aborts
    monkeypatch.setenv("NANWATCH_ON_NAN", "abort")
    with pytest.raises(SettingsError, match="no way to end one request; use observe or raise"):
        NanProbe()


def test_flush_returns_once_everything_is_in_the_journal(journal: Path) -> None:
    with NanProbe() as probe:
        for _ in range(100):
            probe.observe(logits(), ["a"])
        assert probe.flush()
        assert read(journal).totals.steps == 100


def test_flush_of_a_probe_that_observed_nothing_returns_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_JOURNAL", str(tmp_path / "missing" / "journal"))
    with NanProbe() as probe:
        began = time.monotonic()
        assert probe.flush()
        assert time.monotonic() - began < 4


def test_flush_after_nothing_but_a_finish_returns_too(journal: Path) -> None:
    with NanProbe() as probe:
        probe.finish(["never seen"])
        assert probe.flush(timeout=20)


def test_a_result_with_a_nan_is_in_the_journal_when_it_returns(journal: Path) -> None:
    with NanProbe() as probe:
        for step in range(20):
            name = f"r{step}"
            assert probe.observe(logits(1, {0: 2}), [name]).result() == {name: 2}
            assert read(journal).ids[-1] == name


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"request_ids": ["a", "a"]}, ValueError, r"2 ids and \['a'\] twice"),
        ({"request_ids": ["a", "b", "c"]}, ValueError, "3 request ids for 2 logits rows"),
        ({"request_ids": ["a"], "row_ends": [3]}, ValueError, "row_ends end at 3, past the last of 2"),
        ({"request_ids": ["a", "b"], "row_ends": [2, 1]}, ValueError, "decrease"),
        ({"request_ids": ["a"], "row_owner": [0]}, ValueError, "1 row owners for 2"),
        ({"request_ids": ["a"], "row_owner": torch.tensor([0, 5])}, ValueError, "from 0 to 5"),
        ({"request_ids": ["a"], "phase": "warmup"}, ValueError, "warmup"),
        ({"request_ids": ["a"], "phase": "dreaming"}, ValueError, "dreaming"),
        ({"request_ids": "ab"}, TypeError, "the one string 'ab'"),
        ({"request_ids": [7, 8]}, TypeError, "found 7 of type int"),
        ({"request_ids": ["a"], "row_ends": [1.5]}, TypeError, "row_ends are integers"),
        ({"request_ids": ["a"], "row_ends": [float("nan")]}, TypeError, "row_ends are integers"),
        ({"request_ids": ["a"], "row_owner": [0, 0.5]}, TypeError, "row_owner are integers"),
    ],
)
def test_a_callers_mistake_is_an_error_with_the_numbers_and_records_nothing(
    journal: Path, kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with NanProbe() as probe:
        with pytest.raises(error, match=message):
            probe.observe(logits(2, {0: 1}), **kwargs)
        probe.flush()
        assert read(journal).totals.steps == 0


def test_rows_and_ids_of_any_kind_of_integer_and_string_are_taken_and_written(journal: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with NanProbe() as probe:
        bad = logits(4, {2: 5})
        assert probe.observe(bad, ["a", "b"], row_ends=numpy.cumsum([2, 2])).result() == {"a": 0, "b": 5}
        assert probe.observe(bad, ("a", "b"), row_ends=torch.tensor([2, 4])).result() == {"a": 0, "b": 5}
        assert probe.observe(bad, numpy.array(["a", "b"]), row_ends=[2, 4]).result() == {"a": 0, "b": 5}
        assert probe.observe(bad, (n for n in "ab"), row_ends=[2, 4]).result() == {"a": 0, "b": 5}  # type: ignore[arg-type]
        assert probe.flush()
    assert (read(journal).totals.steps, read(journal).ids) == (4, ["b"])


class _Refuses(queue.Queue[dict[str, int]]):
    """A queue that fails in a way of its own, as asyncio's does."""

    def put_nowait(self, item: dict[str, int]) -> None:
        raise LookupError("no place")


def test_a_queue_that_fails_in_a_way_of_its_own_costs_no_count_and_is_one_line(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with NanProbe(queue=_Refuses()) as probe:
        for step in range(3):
            probe.observe(logits(1, {0: 1}), [f"r{step}"])
    assert (read(journal).corrupted, read(journal).totals.queue_full) == (3, 3)
    assert len([r for r in caplog.records if "LookupError" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engine": 0}, "found 0 of type int"),
        ({"rank": 3}, "found 3"),
        ({"life": 5}, "found 5"),
        ({"model_name": 7}, "found 7"),
    ],
)
def test_a_label_that_is_no_string_is_refused_and_leaves_nothing_behind(
    journal: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=f"labels and lives are strings, {message}"):
        NanProbe(**given)
    assert not journal.exists()


@pytest.mark.parametrize("ids", ["ab", [["x"]], [7]])
def test_finish_takes_strings_only(journal: Path, ids: Any) -> None:
    with NanProbe() as probe, pytest.raises(TypeError, match="request ids are"):
        probe.finish(ids)


def test_a_probe_that_is_closed_while_others_observe_is_not_born_again(journal: Path) -> None:
    before = set(threading.enumerate())  # those of other tests' adapters among them
    for _ in range(20):
        probe = NanProbe()
        stop = threading.Event()

        def load(probe: NanProbe = probe, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                probe.observe(logits(), ["a"])
                probe.finish(["a"])

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        probe.close()
        time.sleep(0.005)
        stop.set()
        for thread in threads:
            thread.join()
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("nanwatch")]
    assert len(list(journal.glob("*.jsonl"))) == 1


def test_the_hundredth_probe_of_the_same_labels_does_not_wait_for_ninety_nine_locks(journal: Path) -> None:
    waits: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanwatch.journal.held.time.sleep", waits.append)
        probes = [NanProbe() for _ in range(60)]
    assert len(waits) <= 2 * 8 * 60
    for probe in probes:
        probe.close()
    assert read(journal).sources == 60


def test_integer_logits_and_counts_of_another_dtype_are_refused(journal: Path) -> None:
    with NanProbe() as probe:
        with pytest.raises(TypeError, match="int64"):
            probe.observe(torch.zeros(2, 4, dtype=torch.int64), ["a", "b"])
        with pytest.raises(TypeError, match=r"counts are int32, found torch\.int64"):
            probe.observe_counts(torch.zeros(2, dtype=torch.int64), ["a", "b"])


def test_counts_made_elsewhere_are_taken_as_they_are_at_the_call(journal: Path) -> None:
    with NanProbe() as probe:
        buffer = torch.tensor([0, 9, 4, 9], dtype=torch.int32)
        seen = probe.observe_counts(buffer[::2], ["a", "b"])
        buffer.zero_()
        assert seen.result() == {"a": 0, "b": 4}


def test_a_step_that_its_caller_knows_to_be_clean_is_counted_like_any_other(journal: Path) -> None:
    with NanProbe() as probe:
        probe.observe_clean(3, ["a", "b"])
        probe.observe_counts(torch.tensor([0, 7], dtype=torch.int32), ["a", "b"])
        probe.observe_clean(4, ["a", "c"], row_owner=[0, -1, 1, 1], phase=["decode", "prefill"])
        probe.observe_clean(2, None)
    seen = read(journal)
    assert (seen.totals.steps, seen.totals.rows, seen.totals.requests) == (4, 9, 3)
    assert (seen.ids, seen.request("b").first_step) == (["b"], 2)


def test_who_is_in_a_clean_step_is_checked_too(journal: Path) -> None:
    with NanProbe() as probe, pytest.raises(ValueError, match="3 request ids for 2 logits rows"):
        probe.observe_clean(2, ["a", "b", "c"])
    assert read(journal).totals.steps == 0


def test_the_ids_of_a_step_are_those_at_the_call_though_the_engine_changes_its_list(journal: Path) -> None:
    with NanProbe() as probe:
        batch = ["a", "b"]
        first = probe.observe(logits(2, {1: 1}), batch)
        batch[1] = "c"
        second = probe.observe(logits(2, {1: 2}), batch)
        batch.clear()
        assert (first.result(), second.result()) == ({"a": 0, "b": 1}, {"a": 0, "c": 2})
        assert read(journal).ids == ["b", "c"]


def test_the_callers_queue_gets_the_dict_of_every_step_clean_ones_too(journal: Path) -> None:
    got: queue.Queue[dict[str, int]] = queue.Queue()
    with NanProbe(queue=got) as probe:
        probe.observe(logits(2), ["a", "b"])
        probe.observe(logits(2, {0: 7}), ["a", "b"])
        assert [got.get(timeout=20), got.get(timeout=20)] == [{"a": 0, "b": 0}, {"a": 7, "b": 0}]


def test_a_full_queue_of_the_callers_is_counted_and_loses_no_corrupted_request(journal: Path) -> None:
    got: queue.Queue[dict[str, int]] = queue.Queue(maxsize=1)
    with NanProbe(queue=got) as probe:
        for step in range(3):
            probe.observe(logits(1, {0: 1}), [f"r{step}"])
    seen = read(journal)
    assert (seen.totals.queue_full, seen.corrupted) == (2, 3)


def test_rows_without_ids_are_unattributed_and_an_empty_list_is_all_padding(journal: Path) -> None:
    with NanProbe() as probe:
        assert probe.observe(logits(2, {0: 1}), None).result() == {}
        assert probe.observe(logits(2, {0: 1, 1: 1}), []).result() == {}
    totals = read(journal).totals
    assert (totals.unattributed_nan_rows, totals.padding_nan_rows, totals.corrupted_requests) == (1, 2, 0)
    assert (totals.rows, totals.nan_rows) == (2, 1)


def test_a_probe_that_is_switched_off_has_no_thread_no_file_and_empty_results(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_ENABLED", "0")
    with NanProbe() as probe:
        before = threading.active_count()
        assert probe.observe(logits(1, {0: 1}), ["a"]).result() == {}
        probe.finish(["a"])
        assert probe.flush()
        assert threading.active_count() == before
    assert not journal.exists()


def test_a_variable_that_is_not_understood_is_one_line_in_the_log_and_the_engine_runs_on(
    journal: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NANWATCH_ENABLED", "maybe")
    assert NanProbe().observe(logits(1, {0: 1}), ["a"]).result() == {}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        "nanwatch does not look at this engine: NANWATCH_ENABLED='maybe' is not understood: "
        "it takes 1 or 0, true or false, yes or no, on or off"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("NANWATCH_FAIL_FAST", "ture"), ("NANWATCH_ON_NAN", "die"), ("NANWATCH_ON_NAN", "abort")],
)
def test_a_fail_fast_that_cannot_be_had_refuses_to_start(
    journal: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name}='{value}'"):
        NanProbe()


def test_a_closed_probe_is_inert(journal: Path) -> None:
    probe = NanProbe()
    probe.close()
    probe.close()
    assert probe.observe(logits(1, {0: 1}), ["a"]).result() == {}
    probe.finish(["a"])
    assert read(journal).corrupted == 0


def test_two_probes_of_one_process_count_apart_and_sum_up(journal: Path) -> None:
    with NanProbe() as one, NanProbe() as two:
        one.observe(logits(1, {0: 1}), ["same id"]).result()
        two.observe(logits(1, {0: 1}), ["same id"]).result()
    seen = read(journal)
    assert (seen.sources, seen.corrupted, len(seen.requests)) == (2, 2, 2)


def test_a_probe_made_again_goes_on_in_the_same_file_and_its_requests_are_new_ones(journal: Path) -> None:
    for _ in range(3):
        with NanProbe() as probe:
            probe.observe(logits(1, {0: 1}), ["same id"]).result()
    seen = read(journal)
    assert (seen.sources, seen.corrupted, len({r.key for r in seen.requests})) == (1, 3, 3)


def test_an_abandoned_probe_still_writes_what_it_observed(journal: Path) -> None:
    before = set(lifecycle._living)
    NanProbe().observe(logits(1, {0: 1}), ["a"])
    gc.collect()
    deadline = time.monotonic() + 20
    while read(journal).ids != ["a"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for abandoned in lifecycle._living - before:
        abandoned.close(5)


def test_nothing_that_is_no_step_is_counted(journal: Path) -> None:
    with NanProbe() as probe:
        assert probe.observe(None, ["a"]).result() == {}
        assert isinstance(probe.observe(logits(0), []), Observation)
        assert probe.observe(torch.zeros(0, 32), []).result() == {}
    assert read(journal).totals.requests == 0


def test_a_step_that_an_adapter_could_not_look_at_is_counted_with_its_reason(journal: Path) -> None:
    with NanProbe() as probe:
        probe.drop("error")
        assert probe.flush()
        assert read(journal).totals.dropped_steps == {"error": 1}
        assert read(journal).totals.steps == 0
        with pytest.raises(ValueError, match="found 'whim'"):
            probe.drop("whim")


def test_fail_fast_is_off_unless_it_is_asked_for(journal: Path) -> None:
    with NanProbe() as probe:
        assert probe.observe(logits(1, {0: 1}), ["a"]).result() == {"a": 1}


def test_fail_fast_raises_for_a_nan_whose_request_nobody_named(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    with NanProbe() as probe:
        with pytest.raises(NanLogitsError, match="in 2 rows whose requests nobody named"):
            probe.observe(logits(3, {0: 1, 2: 1}), None)
        probe.observe(logits(3, {0: 1, 2: 1}), [])  # padding
        assert read(journal).totals.fail_fast_trips == 1


@pytest.mark.parametrize(
    "given",
    [
        {"NANWATCH_FAIL_FAST": "1", "NANWATCH_LISTEN": "nowhere"},
        {"NANWATCH_ON_NAN": "raise", "NANWATCH_JOURNL": "/x"},
        {"NANWATCH_FAILFAST": "1"},
    ],
)
def test_an_engine_that_was_to_stop_at_a_nan_does_not_run_on_blindly(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError):
        NanProbe()


def test_two_probes_do_not_raise_for_each_other(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NanProbe() as watching:
        monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
        with NanProbe() as strict:
            assert watching.observe(logits(1, {0: 1}), ["a"]).result() == {"a": 1}
            assert strict.observe(logits(1), ["b"]).result() == {"b": 0}
            with pytest.raises(NanLogitsError, match="'c'"):
                strict.observe(logits(1, {0: 1}), ["c"])
            assert watching.observe(logits(1), ["d"]).result() == {"d": 0}


def test_fail_fast_raises_though_the_journal_takes_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_JOURNAL", str(tmp_path / "missing" / "journal"))
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    began = time.monotonic()
    with NanProbe() as probe, pytest.raises(NanLogitsError, match="not in the journal after 1 s") as raised:
        probe.observe(logits(1, {0: 1}), ["a"])
    assert raised.value.requests == {"a": 1}
    assert time.monotonic() - began < 20


def test_fail_fast_raises_in_the_step_after_the_request_was_written(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    with NanProbe() as probe:
        probe.observe(logits(3, {2: 4}), ["a", "b"])  # a padding row never raises
        with pytest.raises(NanLogitsError, match=r"^NaNs detected in logits: \{'b': 5\}$") as raised:
            probe.observe(logits(8, {6: 5}), ["a", "b"], row_ends=[4, 8])
        seen = read(journal)
    assert raised.value.requests == {"b": 5}
    assert (seen.ids, seen.totals.fail_fast_trips, seen.totals.padding_nan_rows) == (["b"], 1, 1)
