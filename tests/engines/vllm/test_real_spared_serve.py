"""`vllm serve` under NANWATCH_ON_NAN=abort: what the clients see of one poisoned request among eight.

And without it, of the same traffic: what abort proves something against.
"""

import json
from pathlib import Path
from typing import NamedTuple

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
# 8 requests of the crowd fill 16 of 19 blocks, 10 later ones fill 20: they are given every block again.
FEW_BLOCKS = ("--num-gpu-blocks-override", "20", "--block-size", "32")
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
        traffic = eight_and_then_ten(server)
        whole = complete(server.port, "whole", CROWD["victim"], stream=False)
        twins = complete(server.port, "twins", prompt(70, 50), stream=False, **TWO_CHOICES)
        streamed = complete(server.port, "streamed", prompt(71, 50), stream=True, **TWO_CHOICES)
        after = one_by_one(server, "after-", LATER)
        metrics = fetch(f"{address}/metrics") or ""

    victim = traffic.answers["victim"]
    assert (victim.status, victim.finish) == (200, None)
    assert victim.tokens == traffic.alone["victim"].tokens[:5]
    assert victim.error is not None
    assert WHY in victim.error["message"]
    assert traffic.wrong() == {"victim"}
    for name in LATER:
        assert after[f"after-{name}"] == traffic.alone[name]

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


@pytest.mark.vllm_all
def test_without_abort_the_same_traffic_comes_out_as_token_0_with_status_200(
    tiny_model: Path, tmp_path: Path
) -> None:
    """The poisoned stream, and clean requests that are given its blocks; nanwatch names just these."""
    journal = tmp_path / "journal"
    environment = {"NANWATCH_ON_NAN": "observe", "POISONED": json.dumps(PLANS[:1])}
    with serve(
        tiny_model, tmp_path, journal, (), options=FEW_BLOCKS, plug="poisoning", **environment
    ) as server:
        traffic = eight_and_then_ten(server)

    wrong = traffic.wrong()
    assert wrong > {"victim"}
    assert wrong - {"victim"} <= set(LATER)
    for name in wrong:
        answer, right = traffic.answers[name], traffic.alone[name]
        assert (answer.status, answer.finish, answer.error) == (200, "length", None)
        made = zip(answer.tokens, right.tokens, strict=True)
        # Who has written over the poison goes on with other tokens than 0, and they are as wrong.
        assert next(token for token, good in made if token != good) == 0
    assert {request.shown_id for request in read(journal).requests} == wrong


class Traffic(NamedTuple):
    """What clients were given: each prompt alone, and then among and after a poisoned one."""

    alone: dict[str, Answer]
    answers: dict[str, Answer]

    def wrong(self) -> set[str]:
        """Return who was given anything else than alone."""
        return {name for name, answer in self.answers.items() if answer != self.alone[name]}


def eight_and_then_ten(server: Server) -> Traffic:
    """Send each prompt alone, then the crowd of eight streams at once, then ten clean ones in turn."""
    alone = one_by_one(server, "alone-", CROWD | LATER)
    among = complete_all(server.port, CROWD, stream=True)
    later = one_by_one(server, "", LATER)
    return Traffic({name.removeprefix("alone-"): answer for name, answer in alone.items()}, among | later)


def one_by_one(server: Server, before: str, prompts: dict[str, list[int]]) -> dict[str, Answer]:
    """Complete each prompt when the one before is done."""
    return {
        before + name: complete(server.port, before + name, text, stream=False)
        for name, text in prompts.items()
    }
