"""Small inputs with right answers that a naive build gets wrong, through a real probe and journal.

V = 32; C is what corrupted_requests_total would show. Scenarios of an engine or of the exporter
stand with those.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nanwatch import NanLogitsError, NanProbe, count_nans_per_row, inspect_rows, nans_to_dict
from tests.seen import Seen, read

V = 32
NAN = float("nan")


@pytest.fixture
def probe(journal: Path) -> Iterator[NanProbe]:
    with NanProbe() as made:
        yield made


@pytest.fixture
def seen(journal: Path, probe: NanProbe) -> Callable[[], Seen]:
    """Everything observed so far, as the journal holds it."""

    def look() -> Seen:
        assert probe.flush()
        return read(journal)

    return look


def rows(*nans: int) -> Tensor:
    """Logits [len(nans), V]; row i holds nans[i] NaNs."""
    made = torch.randn(len(nans), V)
    for row, count in enumerate(nans):
        made[row, :count] = NAN
    return made


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (rows(0, 0, 0, 0, 0, 0, 5, 0), {"A": 0, "B": 5}),
        (rows(0, 1, 0, 0, 0, 0, 0, 0), {"A": 1, "B": 0}),
    ],
)
def test_a_nan_in_a_speculative_row_is_charged_to_the_request_that_owns_the_row(
    probe: NanProbe, seen: Callable[[], Seen], planted: Tensor, expected: dict[str, int]
) -> None:
    found = probe.observe(planted, ["A", "B"], row_ends=[4, 8], phase="verify").result()
    bad = next(name for name, values in expected.items() if values)
    assert found == expected
    assert (seen().corrupted, seen().ids, seen().request(bad).phase) == (1, [bad], "verify")


@pytest.mark.parametrize(("row", "bad"), [(6, "B"), (1, "A")])
def test_fail_fast_under_speculation_names_exactly_the_request_that_owns_the_row(
    journal: Path, monkeypatch: pytest.MonkeyPatch, row: int, bad: str
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    planted = rows(*(5 * (r == row) for r in range(8)))
    with NanProbe() as probe, pytest.raises(NanLogitsError) as raised:
        probe.observe(planted, ["A", "B"], row_ends=[4, 8])
    assert raised.value.requests == {bad: 5}


def test_corruption_is_sticky_clean_steps_after_it_take_nothing_back(
    probe: NanProbe, seen: Callable[[], Seen]
) -> None:
    counted = []
    for nans in (0, 3, 0, 0):
        probe.observe(rows(nans), ["A"])
        counted.append(seen().corrupted)
    assert counted == [0, 1, 1, 1]
    assert (seen().totals.nan_values, seen().request("A").first_step, seen().request("A").values) == (3, 2, 3)


def test_a_request_that_never_finishes_is_counted_at_once_and_only_once(
    probe: NanProbe, seen: Callable[[], Seen]
) -> None:
    for step in range(1, 6):
        probe.observe(rows(3 * (step == 4)), ["A"])
    assert seen().corrupted == 1
    for _ in range(3000):
        probe.observe(rows(1), ["A"])
    assert seen().corrupted == 1
    assert (seen().totals.requests, seen().request("A").finished) == (1, False)


def test_a_prefill_chunk_whose_sample_is_discarded_still_counts(
    probe: NanProbe, seen: Callable[[], Seen]
) -> None:
    for nans in (2, 0, 0):
        probe.observe(rows(nans), ["A"], phase="prefill")
        assert probe.observe(None, ["A"], phase="prefill").result() == {}  # a chunk without logits
    assert (seen().corrupted, seen().request("A").phase, seen().totals.steps) == (1, "prefill", 3)


def test_counts_that_are_read_late_belong_to_the_requests_of_their_own_step(
    journal: Path, probe: NanProbe
) -> None:
    first = probe.observe(rows(0, 4), ["A", "B"])
    second = probe.observe(rows(0, 0), ["C", "A"])
    assert (second.result(), first.result()) == ({"C": 0, "A": 0}, {"A": 0, "B": 4})
    probe.observe(rows(0, 4), ["D", "E"])
    probe.close()  # drained at shutdown
    assert read(journal).ids == ["B", "E"]


def test_padding_rows_never_corrupt_a_request(probe: NanProbe, seen: Callable[[], Seen]) -> None:
    real = list("abcde")
    probe.observe(rows(0, 0, 0, 0, 0, 1, 1, 1), real)
    assert (seen().corrupted, seen().totals.padding_nan_rows) == (0, 3)
    probe.observe(rows(0, 0, 0, 0, 1, 1, 1, 1), real)
    assert (seen().corrupted, seen().ids, seen().totals.padding_nan_rows) == (1, ["e"], 6)


@pytest.mark.parametrize("fail_fast", ["0", "1"])
def test_warm_up_runs_are_nobodys_requests_and_the_first_real_nan_after_them_counts(
    journal: Path, monkeypatch: pytest.MonkeyPatch, fail_fast: str
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", fail_fast)
    with NanProbe() as probe:
        for _ in range(3):
            probe.observe(rows(V, V), [], phase="warmup")
        probe.flush()
        assert read(journal).corrupted == 0
        if fail_fast == "1":
            with pytest.raises(NanLogitsError):
                probe.observe(rows(1), ["A"])
        else:
            probe.observe(rows(1), ["A"]).result()
        assert (read(journal).corrupted, read(journal).totals.padding_nan_rows) == (1, 6)


def test_raw_logits_count_though_the_engine_cleans_them_in_place_right_after(
    probe: NanProbe, seen: Callable[[], Seen]
) -> None:
    logits = rows(V, 0)
    observation = probe.observe(logits, ["A", "B"])
    logits.nan_to_num_(0.0)
    logits.zero_()
    assert observation.result() == {"A": V, "B": 0}
    assert seen().corrupted == 1


def test_masks_of_infinities_are_no_corruption(probe: NanProbe, seen: Callable[[], Seen]) -> None:
    masked = torch.full((1, V), -torch.inf)
    masked[0, 7] = 1.0
    overflown = torch.randn(1, V)
    overflown[0, 3] = torch.inf
    both = torch.full((1, V), -torch.inf)
    both[0, 0] = torch.inf
    for logits in (masked, overflown, both):
        assert probe.observe(logits, ["A"]).result() == {"A": 0}
    assert seen().totals.nan_rows == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_shape_and_dtype_is_counted_right(probe: NanProbe, dtype: torch.dtype) -> None:
    made = rows(0, 3).to(dtype)
    wide = torch.zeros(2, 2 * V, dtype=dtype)
    wide[:, ::2] = made
    deep = torch.stack([made, made.flip(0)])  # [B, T, V]: rows are b0t0, b0t1, b1t0, b1t1
    assert probe.observe(made, ["A", "B"]).result() == {"A": 0, "B": 3}
    assert probe.observe(wide[:, ::2], ["A", "B"]).result() == {"A": 0, "B": 3}
    assert probe.observe(deep, list("abcd")).result() == {"a": 0, "b": 3, "c": 3, "d": 0}
    assert probe.observe(deep, ["A", "B"], row_ends=[2, 4]).result() == {"A": 3, "B": 3}
    assert probe.observe(made[:0], []).result() == {}
    assert probe.observe(None, ["A"]).result() == {}
    for ambiguous, ids in ((deep, ["A", "B"]), (deep[:1], ["A"]), (deep, ["A", "B", "C"])):
        shape = re.escape(f"logits {list(ambiguous.shape)}")
        with pytest.raises(
            ValueError, match=f"{shape} are . rows for {len(ids)} request ids: say with row_ends"
        ):
            probe.observe(ambiguous, ids)
        with pytest.raises(ValueError, match=f"counts .* are . rows for {len(ids)} request ids"):
            probe.observe_counts(count_nans_per_row(ambiguous), ids)
        with pytest.raises(ValueError, match=f"counts .* are . rows for {len(ids)} request ids"):
            probe.observe_counts(inspect_rows(ambiguous), ids)
        with pytest.raises(ValueError, match="one number for each row"):
            nans_to_dict(count_nans_per_row(ambiguous), ids)
    with pytest.raises(ValueError, match="2 request ids for 0 logits rows"):
        probe.observe(made[:0], ["A", "B"])


def test_prompt_rows_are_counted_with_their_phase(probe: NanProbe, seen: Callable[[], Seen]) -> None:
    logits = torch.randn(500, V)
    logits[[3, 250, 499], :2] = NAN
    assert probe.observe(logits, ["A"], row_ends=[500], phase="prompt").result() == {"A": 6}
    assert (seen().corrupted, seen().totals.nan_rows, seen().request("A").phase) == (1, 3, "prompt")


def test_an_id_that_is_used_again_is_another_request_even_while_its_last_step_is_in_flight(
    probe: NanProbe, seen: Callable[[], Seen]
) -> None:
    probe.observe(rows(1), ["id"])
    probe.finish(["id"])
    probe.observe(rows(1), ["id"])
    probe.observe(rows(1, 1), ["id-0", "id-1"])  # children of one parent, n=2
    assert seen().corrupted == 4
    assert [(r.request_id, r.n) for r in seen().requests] == [("id", 0), ("id", 1), ("id-0", 0), ("id-1", 0)]


def test_eight_ranks_of_one_life_are_eight_sources_and_only_the_counting_one_is_summed(journal: Path) -> None:
    for rank in range(8):
        with NanProbe(life="one start", rank=str(rank), counting=rank == 0) as probe:
            for step in range(1, 18):
                probe.observe(rows(2 * (step == 17)), ["A"])
    seen = read(journal)
    assert (seen.sources, seen.counted) == (8, 1)
    assert {(r.life, r.request_id, r.n, r.first_step) for r in seen.requests} == {("one start", "A", 0, 17)}


_LIFE = """
import sys, torch, nanwatch, os
probe = nanwatch.NanProbe()
bad = torch.full((1, 32), float("nan"))
for name in sys.argv[1:]:
    probe.observe(bad, [name]).result()
os.kill(os.getpid(), 9)
"""


def test_a_restarted_engine_goes_on_counting_and_uses_its_ids_again(journal: Path) -> None:
    for ids in (["cmpl-0", "cmpl-1"], ["cmpl-0"]):
        died = subprocess.run([sys.executable, "-c", _LIFE, *ids], check=False)
        assert died.returncode == -9
    seen = read(journal)
    assert (seen.corrupted, seen.sources, len({r.key for r in seen.requests})) == (3, 1, 3)


def test_a_hundred_thousand_request_ids_leave_memory_and_file_bounded(
    journal: Path, probe: NanProbe, seen: Callable[[], Seen]
) -> None:
    bad = torch.ones(500, dtype=torch.int32)
    for batch in range(200):
        ids = [f"request-{batch}-{i}" for i in range(500)]
        probe.observe_counts(bad, ids)
        probe.finish(ids)
    (file,) = journal.glob("*.jsonl")
    assert (seen().corrupted, seen().sources) == (100_000, 1)
    assert len(seen().requests) <= 40_000
    assert file.stat().st_size < 16_000_000
    assert json.loads(file.read_bytes().splitlines()[-1])["totals"]["requests"] == 100_000


def test_ids_of_any_text_reach_the_journal_as_they_are(probe: NanProbe, seen: Callable[[], Seen]) -> None:
    names = ["x" * 300, 'quote " back \\ slash', "line\nbreak", "日本語", "\ud800 alone", "", "\x00"]
    probe.observe(rows(*(1 for _ in names)), names)
    assert seen().ids == names
