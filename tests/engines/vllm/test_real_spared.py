"""NANWATCH_ON_NAN=abort on a real engine, its tokens compared with those of each request alone.

make test-vllm runs the first two; `make test-vllm-all` each scenario, asynchronous and speculative
scheduling, and the second model runner.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.conftest import Run
from tests.seen import Seen, read

ALL = pytest.mark.vllm_all
SETUPS = {
    "v1-sync": ("v1", "sync", "eight", "embedding"),
    "v1-async": ("v1", "async", "eight", "embedding"),
    "v1-sync-ngram": ("v1", "sync", "eight", "embedding", "speculative"),
    "v2-sync": ("v2", "sync", "eight", "embedding"),
    "v2-async": ("v2", "async", "eight", "embedding"),
}
IN_SHORT = "v1-sync"
ON_EACH_SETUP = pytest.mark.parametrize(
    "setup", [pytest.param(name, marks=() if name == IN_SHORT else ALL) for name in SETUPS]
)
WHY = "nanwatch: NaN in the logits of this request (1000 values in one step)"
SPARING = {"NANWATCH_ON_NAN": "abort"}


@ON_EACH_SETUP
def test_one_of_eight_ends_and_its_blocks_are_clean_for_who_comes_next(
    run: Run, tiny_model: Path, tmp_path: Path, setup: str
) -> None:
    """Seven and then ten requests are token by token what they are alone; no block is lost."""
    eight, embedding = run("sparing", str(tiny_model), *SETUPS[setup], **SPARING)
    tokens, reason, why = eight["victim"]
    assert (reason, why) == ("error", WHY)
    assert tokens == eight["right_of_victim"][: len(tokens)]
    assert tokens
    assert (eight["wrong"], eight["wrong_later"]) == ([], [])
    assert eight["reused"] >= 1
    assert embedding["victim"] == [[], "error", WHY]
    assert embedding["wrong_later"] == []
    assert eight["free"] == embedding["free"] == [63, 63]
    seen = read(tmp_path / "journal")
    assert contained(seen) == {"corrupted": 2, "aborted": 2, "still held": 0}
    assert seen.totals.kv_poisoned_blocks >= 2
    assert {request.shown_id for request in seen.requests} == {"victim"}


def test_without_abort_the_same_requests_come_out_as_garbage_with_success(run: Run, tiny_model: Path) -> None:
    """What the tests here prove something against."""
    eight, embedding = run("sparing", str(tiny_model), "v1", "sync", "eight", "embedding")
    assert eight["victim"][1:] == ["length", None]
    right, made = eight["right_of_victim"], eight["victim"][0]
    good = next(at for at, token in enumerate(made) if token == 0)
    assert made == right[:good] + [0] * (24 - good)
    assert eight["wrong_later"]
    assert embedding["victim"] == [[0] * 24, "length", None]
    assert embedding["wrong_later"]


@ALL
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_a_poisoned_prefix_names_its_readers_and_spares_everybody_else(
    run: Run, tiny_model: Path, tmp_path: Path, scheduling: str
) -> None:
    """Poison in the shared blocks, behind them, and in shared blocks whose reader's logits show nothing."""
    prefix, behind, unseen = run(
        "sparing", str(tiny_model), "v1", scheduling, "prefix", "spared_prefix", "unseen", **SPARING
    )
    assert prefix["shared"] == 1  # all four read the same two blocks
    assert verdicts(prefix) == {"reader": {f"named: {WHY}"}, "other": {"right"}, "later": {"right"}}
    assert behind["among"].pop("reader2") == f"named: {WHY}"
    assert verdicts(behind) == {"reader": {"right"}, "later": {"right"}}
    assert unseen["among"] == {
        "reader0": [
            "error",
            "nanwatch: NaN in 1 KV cache blocks that this request shares with a corrupted one",
        ],
        "reader1": ["error", WHY],
        "reader2": ["error", WHY],
    }
    assert set(unseen["later"].values()) == {"right"}
    for scenario in (prefix, behind, unseen):
        assert scenario["free"] == [63, 63]
    # 4 + 1 + 2 showed NaN in their logits; the last reader was ended for what it reads.
    assert contained(read(tmp_path / "journal")) == {"corrupted": 7, "aborted": 8, "still held": 0}


@ALL
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_a_client_that_hangs_up_leaves_no_poison_and_a_sibling_ends_by_itself(
    run: Run, tiny_model: Path, tmp_path: Path, scheduling: str
) -> None:
    """The NaN of a request that is gone already; and n=3, where one choice of three fails."""
    hung_up, siblings = run("sparing", str(tiny_model), "v1", scheduling, "hung_up", "siblings", **SPARING)
    assert hung_up["wrong_later"] == []
    assert hung_up["free"] == siblings["free"] == [63, 63]
    assert [choice[1:] for choice in siblings["victim"]] == [
        ["length", None],
        ["error", WHY],
        ["length", None],
    ]
    assert siblings["other"] == "length"
    gone_first = scheduling == "async"  # a synchronous step has delivered before anybody can hang up
    aborted = 1 if gone_first else 2
    assert contained(read(tmp_path / "journal")) == {"corrupted": 2, "aborted": aborted, "still held": 0}


@ALL
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_of_200_requests_under_load_exactly_the_poisoned_ones_end(
    run: Run, tiny_model: Path, tmp_path: Path, scheduling: str
) -> None:
    """10 of 200; the other 190 are what they are alone, and all blocks come back."""
    (load,) = run("sparing", str(tiny_model), "v1", scheduling, "load", **SPARING)
    assert len(load["poisoned"]) == 10
    assert load["ended"] == load["poisoned"]
    assert (load["wrong"], load["garbage_sent"]) == ([], [])
    assert load["free"] == [63, 63]
    assert contained(read(tmp_path / "journal")) == {"corrupted": 10, "aborted": 10, "still held": 0}


def contained(seen: Seen) -> dict[str, int]:
    """Return what the journal says was done."""
    totals = seen.totals
    return {
        "corrupted": totals.corrupted_requests,
        "aborted": totals.aborted_requests,
        "still held": totals.quarantined_blocks - totals.released_blocks,
    }


def verdicts(scenario: dict[str, Any]) -> dict[str, set[str]]:
    """Return what was said of each kind of request: reader0 and reader1 are of one kind."""
    found: dict[str, set[str]] = {}
    for name, verdict in (scenario["among"] | scenario["later"]).items():
        found.setdefault(name.rstrip("0123456789"), set()).add(verdict)
    return found
