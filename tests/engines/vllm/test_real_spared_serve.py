"""`vllm serve` under NANWATCH_ON_NAN=abort: what the clients see of one poisoned request among eight."""

import json
from pathlib import Path

import pytest

from tests.engines.vllm.serving import Server, fetch, sample, serve, sidecar
from tests.engines.vllm.sparing import prompt
from tests.engines.vllm.streams import Answer, complete, complete_all
from tests.seen import read

CROWD = {("victim" if i == 3 else f"crowd-{i}"): prompt(i) for i in range(8)}
LATER = {f"later-{i}": prompt(100 + i, length=20) for i in range(10)}
PLANS = [
    {"id": "cmpl-victim-0", "at": 6, "block": 0},  # a stream
    {"id": "cmpl-whole-0", "at": 6, "block": 0},  # a client that waits for all of its answer
    {"id": "1_cmpl-twins-0", "at": 6, "block": 1},  # one of two choices
    {"id": "1_cmpl-streamed-0", "at": 6, "block": 1},  # ... of a stream
]
TWO_CHOICES = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 64}
FEW_BLOCKS = ("--num-gpu-blocks-override", "32", "--block-size", "32")
WHY = "NaN in the logits of this request (1000 values in one step); it was ended"


TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        pytest.param({}, (), id="sync"),
        pytest.param({"PLANT_ASYNC": "1"}, (), id="async", marks=pytest.mark.vllm_all),
        pytest.param(TWO_RANKS, ("--tensor-parallel-size", "2"), id="two-ranks", marks=pytest.mark.vllm_all),
    ],
)
def test_one_of_eight_streams_ends_with_an_error_and_nothing_else_changes(
    tiny_model: Path, tmp_path: Path, environment: dict[str, str], options: tuple[str, ...]
) -> None:
    """And the ten requests that come after it are as they are alone."""
    journal = tmp_path / "journal"
    environment = {"NANWATCH_ON_NAN": "abort", "POISONED": json.dumps(PLANS)} | environment
    options = (*FEW_BLOCKS, *options)
    with (
        sidecar(journal) as address,
        serve(tiny_model, tmp_path, journal, (), options=options, plug="poisoning", **environment) as server,
    ):
        alone = one_by_one(server, "alone-", CROWD | LATER)
        among = complete_all(server.port, CROWD, stream=True)
        later = one_by_one(server, "", LATER)
        whole = complete(server.port, "whole", CROWD["victim"], stream=False)
        twins = complete(server.port, "twins", prompt(70, 50), stream=False, **TWO_CHOICES)
        streamed = complete(server.port, "streamed", prompt(71, 50), stream=True, **TWO_CHOICES)
        after = one_by_one(server, "after-", LATER)
        metrics = fetch(f"{address}/metrics") or ""

    victim = among.pop("victim")
    assert (victim.status, victim.finish) == (200, None)
    assert victim.tokens == alone["alone-victim"].tokens[:5]
    assert victim.error is not None
    assert WHY in victim.error["message"]
    assert {name: answer.tokens for name, answer in among.items()} == {
        name: alone[f"alone-{name}"].tokens for name in among
    }
    assert {answer.finish for answer in among.values()} == {"length"}
    for name in LATER:
        assert later[name] == alone[f"alone-{name}"] == after[f"after-{name}"]

    assert (whole.status, whole.tokens) == (503, [])
    assert whole.error is not None
    assert (whole.error["type"], whole.error["code"]) == ("ServiceUnavailableError", 503)
    assert WHY in whole.error["message"]
    assert (twins.status, twins.tokens) == (503, [])
    assert (streamed.status, streamed.finish) == (200, None)
    # 5 of the bad choice; its sibling was some steps ahead, and is cut off long before its 64.
    assert len(streamed.tokens) in range(9, 5 + 32)
    assert streamed.error is not None

    assert sample(metrics, "nanwatch_aborted_requests_total") == 4
    assert sample(metrics, "corrupted_requests_total") == 4
    assert sample(metrics, "nanwatch_quarantined_blocks") == 0
    assert sample(metrics, "nanwatch_kv_poisoned_blocks_total") >= 4
    named = [request.shown_id for request in read(journal).requests]
    assert named == ["victim", "whole", "twins", "streamed"]


def one_by_one(server: Server, before: str, prompts: dict[str, list[int]]) -> dict[str, Answer]:
    """Complete each prompt when the one before is done."""
    return {
        before + name: complete(server.port, before + name, text, stream=False)
        for name, text in prompts.items()
    }
