"""NANWATCH_ON_NAN=abort: one request ends with an error, all others answer as if they had been alone.

The witness is the answer of each prompt alone. Where the engine is only observed the same tests show the
garbage: a run that is answered well for want of a fault would prove nothing.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from transformers.generation.continuous_batching import RequestStatus

import nanwatch
from tests.engines.huggingface.batches import Prompt, add, quick_collections
from tests.engines.huggingface.flaky import NAN, Fault, flaky
from tests.engines.huggingface.sessions import Session, alone, poisoned, session, talkative_llama
from tests.engines.huggingface.tiny import POISON
from tests.engines.written import Written
from tests.tools import until

NEW_TOKENS = 8
FIRST = {f"first-{i}": [5 + i, 6 + i, 7 + 2 * i, 8 + i, 11] for i in range(8)}
NEXT = {f"next-{i}": [*FIRST[f"first-{i % 8}"], 30 + i, 40 + i] for i in range(10)}
LONG = {"long": [13, 14, 15, 16, 17, 18, 19, 20, 21, 22], "beside": [23, 24]}
IN_CHUNKS_OF_4: dict[str, Any] = {"max_batch_tokens": 4, "max_requests_per_batch": 4}

both_ways = pytest.mark.parametrize("is_async", [False, True], ids=["synchronous", "asynchronous"])


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with quick_collections():
        yield talkative_llama()


@pytest.fixture(scope="module")
def answers(model: Any) -> dict[str, list[int]]:
    found = alone(model, FIRST | NEXT | LONG, NEW_TOKENS)
    assert all(0 not in tokens and POISON not in tokens for tokens in found.values())
    assert len({tuple(tokens) for tokens in found.values()}) > 15
    return found


@pytest.fixture
def aborting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANWATCH_ON_NAN", "abort")


def prompts(tokens: Mapping[str, list[int]], *, streaming: bool = False) -> dict[str, Prompt]:
    return {name: Prompt(one, NEW_TOKENS, streaming) for name, one in tokens.items()}


def told(outputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return what clients take for an answer."""
    return {name: output.generated_tokens for name, output in outputs.items() if output.error is None}


def assert_ended(output: Any, answer: list[int]) -> None:
    """Ended with an error that names NaN, after none but right tokens."""
    assert output.status is RequestStatus.FAILED
    assert output.error.startswith(f"NaNs detected in logits: {{{output.request_id!r}: ")
    assert output.generated_tokens == answer[: len(output.generated_tokens)]
    assert len(output.generated_tokens) < NEW_TOKENS


def assert_clean(running: Session) -> None:
    assert running.cache_is_finite()
    assert running.all_blocks_are_back()


@both_ways
@pytest.mark.parametrize("place", ["embedding", "layer", "attention", "head"])
@pytest.mark.parametrize("after_tokens", [0, 4])
@pytest.mark.usefixtures("aborting")
def test_seven_of_eight_answer_as_if_alone_and_so_do_the_next_ten(  # noqa: PLR0913, PLR0917  a table
    model: Any,
    answers: dict[str, list[int]],
    written: Written,
    place: str,
    after_tokens: int,
    is_async: bool,  # noqa: FBT001
) -> None:
    with (
        nanwatch.watch_generate(model) as handle,
        session(
            model, is_async=is_async, allow_block_sharing=True, prepare=lambda m: add(m, prompts(FIRST))
        ) as running,
        flaky(model, running.manager, [fault := Fault("first-3", after_tokens, place)]),
    ):
        outputs = running.results(8)
        later = running.ask(prompts(NEXT))
        assert_clean(running)
        totals, corrupted = written.report(handle.probe)
    assert fault.fired == 1
    assert_ended(outputs.pop("first-3"), answers["first-3"])
    assert told(outputs | later) == {n: answers[n] for n in FIRST | NEXT if n != "first-3"}
    assert list(corrupted) == ["first-3"]
    assert (totals.corrupted_requests, totals.aborted_requests, totals.requests) == (1, 1, 18)
    assert (totals.quarantined_blocks, totals.unattributed_nan_rows) == (0, 0)
    assert (totals.kv_poisoned_blocks > 0) == (place in {"embedding", "layer"})


@both_ways
def test_observed_alone_it_spoils_the_batch_and_whoever_shares_a_prefix(
    model: Any,
    answers: dict[str, list[int]],
    is_async: bool,  # noqa: FBT001
) -> None:
    with (
        nanwatch.watch_generate(model),
        session(
            model,
            is_async=is_async,
            allow_block_sharing=True,
            num_blocks=256,
            prepare=lambda m: add(m, prompts(FIRST)),
        ) as running,
        flaky(model, running.manager, [Fault("first-3", 0, "embedding")]),
    ):
        outputs = running.results(8)
        later = running.ask(prompts(NEXT))
    assert told(outputs) == dict.fromkeys(FIRST, [0] * NEW_TOKENS)
    spoiled = {name for name, tokens in told(later).items() if tokens != answers[name]}
    assert len(spoiled) == 10


@both_ways
@pytest.mark.usefixtures("aborting")
def test_a_prefix_that_turned_bad_in_the_cache_is_read_anew_by_all_who_share_it(
    model: Any,
    answers: dict[str, list[int]],
    written: Written,
    is_async: bool,  # noqa: FBT001
) -> None:
    shared = {name: NEXT[name] for name in ("next-0", "next-8")}  # both begin as first-0 does
    with (
        nanwatch.watch_generate(model) as handle,
        session(model, is_async=is_async, allow_block_sharing=True) as running,
    ):
        running.ask(prompts({"first-0": FIRST["first-0"]}))
        spoil_the_prefix_cache(running)
        outputs = running.ask(prompts(shared))
        assert_clean(running)
        totals, corrupted = written.report(handle.probe)
    assert told(outputs) == {name: answers[name] for name in shared}
    assert not corrupted
    # The one that they share, and what each wrote after it in that step.
    assert (totals.aborted_requests, totals.kv_poisoned_blocks) == (0, 3)


@pytest.mark.parametrize("on_nan", ["observe", "abort"])
def test_a_prefix_that_is_bad_by_itself_is_never_an_answer(
    model: Any, monkeypatch: pytest.MonkeyPatch, on_nan: str
) -> None:
    """Whoever sends the token whose embedding is NaN is named, each time; observed, it is all garbage."""
    monkeypatch.setenv("NANWATCH_ON_NAN", on_nan)
    bad = {f"bad-{i}": [5, POISON, 6, 7, 8, 9, 20 + i] for i in range(3)}
    with (
        poisoned(model),
        nanwatch.watch_generate(model),
        session(model, allow_block_sharing=True) as running,
    ):
        outputs = {name: running.ask(prompts({name: bad[name]}))[name] for name in bad}
        assert running.cache_is_finite() == (on_nan == "abort")
    errors = [output.error for output in outputs.values()]
    assert all(errors) if on_nan == "abort" else not any(errors)
    assert {tuple(tokens) for tokens in told(outputs).values()} <= {(0,) * NEW_TOKENS}


def spoil_the_prefix_cache(running: Session) -> None:
    """Let the block that is kept for first-0's prompt turn NaN, as memory does that goes bad."""
    (block,) = running.allocator.match_prefix_blocks(FIRST["first-0"])
    blocks = running.allocator._copy_view.view(running.allocator.cache_dtype)
    blocks[block, 7] = NAN


@both_ways
@pytest.mark.usefixtures("aborting")
def test_a_chunk_of_a_prompt_whose_nan_nobody_sees_at_first(
    model: Any,
    answers: dict[str, list[int]],
    written: Written,
    is_async: bool,  # noqa: FBT001
) -> None:
    """It has no row, and is alone in its batch: a later chunk meets it. A second time it comes out well."""
    with (
        nanwatch.watch_generate(model) as handle,
        session(model, is_async=is_async, allow_block_sharing=True, **IN_CHUNKS_OF_4) as running,
        flaky(model, running.manager, [fault := Fault("long")]),
    ):
        outputs = running.ask(prompts({"long": LONG["long"]}))
        assert_clean(running)
        totals = written.totals(handle.probe)
    assert fault.fired == 1
    assert told(outputs) == {"long": answers["long"]}
    assert (totals.corrupted_requests, totals.aborted_requests) == (0, 0)


@both_ways
@pytest.mark.usefixtures("aborting")
def test_a_chunk_that_is_bad_each_time_is_ended_at_the_second(
    model: Any,
    answers: dict[str, list[int]],
    written: Written,
    is_async: bool,  # noqa: FBT001
) -> None:
    with (
        nanwatch.watch_generate(model) as handle,
        session(model, is_async=is_async, allow_block_sharing=True, **IN_CHUNKS_OF_4) as running,
        flaky(model, running.manager, [fault := Fault("long", times=1000)]),
    ):
        outputs = running.ask(prompts({"long": LONG["long"]}))
        later = running.ask(prompts({"beside": LONG["beside"]}))
        assert_clean(running)
        totals, corrupted = written.report(handle.probe)
    assert fault.fired > 1
    assert_ended(outputs["long"], answers["long"])
    assert told(later) == {"beside": answers["beside"]}
    assert (list(corrupted), totals.aborted_requests) == (["long"], 1)


@both_ways
@pytest.mark.usefixtures("aborting")
def test_a_chunk_without_a_row_is_named_by_its_kv_and_its_neighbour_spared(
    model: Any,
    answers: dict[str, list[int]],
    written: Written,
    is_async: bool,  # noqa: FBT001
) -> None:
    """`beside` makes tokens while `long` is in the middle of its prompt: only its row shows the NaN."""
    both = {"beside": LONG["beside"], "long": LONG["long"]}
    with (
        nanwatch.watch_generate(model) as handle,
        session(
            model,
            is_async=is_async,
            allow_block_sharing=False,
            prepare=lambda m: add(m, prompts(both)),
            **IN_CHUNKS_OF_4,
        ) as running,
        flaky(model, running.manager, [Fault("long")]),
    ):
        outputs = running.results(2)
        assert_clean(running)
        totals, corrupted = written.report(handle.probe)
    assert_ended(outputs.pop("long"), answers["long"])
    assert told(outputs) == {"beside": answers["beside"]}
    assert {name: (r.phase, r.rows) for name, r in corrupted.items()} == {"long": ("prefill", 1)}
    assert totals.aborted_requests == 1


@both_ways
@pytest.mark.usefixtures("aborting")
def test_streams_get_right_tokens_only_and_the_bad_one_an_error_at_its_end(
    model: Any,
    answers: dict[str, list[int]],
    is_async: bool,  # noqa: FBT001
) -> None:
    with (
        nanwatch.watch_generate(model),
        session(
            model, is_async=is_async, prepare=lambda m: add(m, prompts(FIRST, streaming=True))
        ) as running,
        flaky(model, running.manager, [Fault("first-3", 4)]),
    ):
        outputs = running.results(8)
    for name, parts in running.streamed.items():
        lengths = [len(part.generated_tokens) for part in parts]
        assert lengths == list(range(1, len(parts) + 1))  # nothing twice, nothing left out
        assert all(p.generated_tokens == answers[name][: len(p.generated_tokens)] for p in parts)
    assert_ended(outputs.pop("first-3"), answers["first-3"])
    assert told(outputs) == {n: answers[n] for n in FIRST if n != "first-3"}


@pytest.mark.parametrize("after_tokens", [5, 6])
@both_ways
@pytest.mark.usefixtures("aborting")
def test_a_step_in_flight_at_a_hit_that_was_clean_does_not_hide_the_next_hit(
    model: Any,
    answers: dict[str, list[int]],
    after_tokens: int,
    is_async: bool,  # noqa: FBT001
) -> None:
    """Nothing of that step is used; but the engine launches later ones from the same buffer."""
    faults = [Fault("first-3", 3, "head"), Fault("first-5", after_tokens, "head")]
    with (
        nanwatch.watch_generate(model),
        session(model, is_async=is_async, prepare=lambda m: add(m, prompts(FIRST))) as running,
        flaky(model, running.manager, faults),
    ):
        outputs = running.results(8)
        assert_clean(running)
    for name in ("first-3", "first-5"):
        assert_ended(outputs.pop(name), answers[name])
    assert told(outputs) == {n: answers[n] for n in FIRST if n not in {"first-3", "first-5"}}


@both_ways
@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.usefixtures("aborting")
def test_a_fork_that_makes_nan_ends_alone(
    model: Any,
    answers: dict[str, list[int]],
    is_async: bool,  # noqa: FBT001
    sharing: bool,  # noqa: FBT001
) -> None:
    def prepare(manager: Any) -> None:
        add(manager, prompts({"first-1": FIRST["first-1"]}))
        manager.num_return_sequences = 2
        add(manager, prompts({"first-0": FIRST["first-0"]}))

    with (
        nanwatch.watch_generate(model),
        session(model, is_async=is_async, allow_block_sharing=sharing, prepare=prepare) as running,
        flaky(model, running.manager, [Fault("first-0__child#0", 3)]),
    ):
        outputs = running.results(3)
        assert_clean(running)
    assert_ended(outputs.pop("first-0__child#0"), answers["first-0"])
    assert told(outputs) == {name: answers[name] for name in ("first-0", "first-1")}


@both_ways
@pytest.mark.usefixtures("aborting")
def test_where_the_prompt_is_bad_those_that_were_to_be_forked_fail_with_it(
    model: Any,
    written: Written,
    is_async: bool,  # noqa: FBT001
) -> None:
    """Nobody waits for a sibling that never began; the request was one, and is counted once."""
    bad = {"beside": Prompt(LONG["beside"], NEW_TOKENS), "bad": Prompt([5, POISON, 6], NEW_TOKENS)}

    def prepare(manager: Any) -> None:
        add(manager, {"beside": bad["beside"]})
        manager.num_return_sequences = 3
        add(manager, {"bad": bad["bad"]})

    with (
        poisoned(model),
        nanwatch.watch_generate(model) as handle,
        session(model, is_async=is_async, prepare=prepare) as running,
    ):
        outputs = running.results(4)
        assert_clean(running)
        totals, corrupted = written.report(handle.probe)
    failed = {name: output for name, output in outputs.items() if output.error is not None}
    assert set(failed) == {"bad", "bad__child#0", "bad__child#1"}
    assert all("NaNs detected" in output.error for output in failed.values())
    assert (list(corrupted), totals.aborted_requests) == (["bad"], 1)


@both_ways
@pytest.mark.usefixtures("aborting")
def test_where_the_nan_left_with_a_request_that_was_cancelled_nobody_else_is_ended(
    model: Any,
    answers: dict[str, list[int]],
    is_async: bool,  # noqa: FBT001
) -> None:
    """Asynchronously, its step is still in flight when it is dropped, and its KV cannot be asked any more."""
    with (
        nanwatch.watch_generate(model),
        session(model, is_async=is_async, prepare=lambda m: add(m, prompts(FIRST))) as running,
    ):
        fault = CancelledAtOnce("first-3", 3, manager=running.manager)
        with flaky(model, running.manager, [fault]):
            outputs = running.results(7)
        assert_clean(running)
    assert fault.fired == 1
    outputs.pop("first-3", None)  # synchronously it is ended before it is cancelled
    spared = {n: answers[n] for n in FIRST if n != "first-3"}
    assert told(outputs).items() <= spared.items()
    assert len(told(outputs)) >= 6


@pytest.mark.usefixtures("aborting")
def test_where_the_cache_was_full_nobody_is_locked_out(model: Any) -> None:
    """The third was moved out, to be let in when one finishes. One goes with the NaN, one is put back."""
    with (
        nanwatch.watch_generate(model),
        session(
            model,
            is_async=True,
            num_blocks=8,  # 32 places, where three requests of 4 + 12 tokens want 48
            prepare=lambda m: add(m, {name: Prompt([7, 8, 9, 10], 12) for name in "abc"}),
        ) as running,
    ):
        fault = CancelledAtOnce("a", 8, manager=running.manager)
        with flaky(model, running.manager, [fault]):
            outputs = running.results(2)
    assert fault.fired == 1
    assert set(told(outputs)) == {"b", "c"}


@pytest.mark.usefixtures("aborting")
def test_what_a_prompt_that_was_cancelled_in_its_middle_leaves_behind_is_clean(model: Any) -> None:
    """No row ever showed the NaN of its first chunk."""
    with (
        nanwatch.watch_generate(model),
        session(model, is_async=False, allow_block_sharing=True, **IN_CHUNKS_OF_4) as running,
    ):
        fault = CancelledAtOnce("long", 0, manager=running.manager)
        with flaky(model, running.manager, [fault]):
            running.send(prompts({"long": LONG["long"]}))
            until(
                lambda: fault.fired > 0 and not running.manager.batch_processor.has_pending_requests(),
                "it left",
            )
        assert_clean(running)
        assert not running.allocator.ledger.cached_blocks


class CancelledAtOnce(Fault):
    """Its client goes away in the step that makes the NaN."""

    def __init__(self, request_id: str, after_tokens: int, manager: Any) -> None:
        super().__init__(request_id, after_tokens)
        self._manager = manager

    def fires(self, state: Any) -> bool:
        if not super().fires(state):
            return False
        self._manager.cancel_request(self.request_id)
        return True


@both_ways
@pytest.mark.usefixtures("aborting")
def test_two_hundred_requests_of_which_one_in_twenty_is_bad(
    model: Any,
    answers: dict[str, list[int]],
    written: Written,
    is_async: bool,  # noqa: FBT001
) -> None:
    """The bad ones are named, each of them and nobody else; no block is lost, none is left dirty.

    They are bad as often as they are tried: two in one step are not told apart at first.
    """
    dice = random.Random(7)
    names = list(FIRST | NEXT)
    sent = {f"{dice.choice(names)}#{i}": None for i in range(200)}
    bad = set(dice.sample(list(sent), 10))
    places = ["embedding", "layer", "attention", "head"]
    faults = [Fault(name, dice.randrange(NEW_TOKENS - 2), dice.choice(places), times=1000) for name in bad]
    tokens = {name: (FIRST | NEXT)[name.partition("#")[0]] for name in sent}
    with (
        nanwatch.watch_generate(model) as handle,
        session(model, is_async=is_async, allow_block_sharing=True, num_blocks=40) as running,
        flaky(model, running.manager, faults),
    ):
        outputs = running.ask(prompts(tokens))
        assert_clean(running)
        totals, corrupted = written.report(handle.probe)
    assert {name for name, output in outputs.items() if output.error is not None} == bad
    wrong = {n for n, found in told(outputs).items() if found != answers[n.partition("#")[0]]}
    assert wrong == set()
    assert set(corrupted) == bad
    assert (totals.requests, totals.corrupted_requests, totals.aborted_requests) == (200, 10, 10)
