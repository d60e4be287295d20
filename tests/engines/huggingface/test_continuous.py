"""Continuous batching: one table, mode x poisoned row -> request, on Transformers' own engine.

Each expectation was worked out on paper from the order of the batches. A second witness is in the outputs:
the engine makes token 0 of a row that holds NaN, and LIKED of any other.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

import nanwatch
from tests.engines.huggingface.batches import (
    Forwards,
    Prompt,
    add,
    following,
    manager_of,
    pageable_swap,
    quick_collections,
    run_to_end,
    two_buffers,
)
from tests.engines.huggingface.tiny import LIKED, tiny_llama
from tests.engines.written import Written

ABC = {"a": Prompt([7, 8, 9, 10]), "b": Prompt([7, 8]), "c": Prompt([11, 12, 13])}
B_ENDS_AT_2 = {**ABC, "b": Prompt([7, 8], new_tokens=2)}
CHUNKED = {"a": Prompt([7, 8, 9, 10, 11, 12]), "b": Prompt([7, 8])}
IN_CHUNKS_OF_4 = {"max_batch_tokens": 4, "max_requests_per_batch": 4}
FILLS_THE_CACHE = {name: Prompt([7, 8, 9, 10], new_tokens=12) for name in "abc"}
EIGHT_BLOCKS = {"num_blocks": 8}  # 32 places, where three requests of 16 tokens want 48


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with quick_collections():
        yield tiny_llama()


@dataclass(frozen=True)
class Case:
    """A run, and what has to be written.

    `nan` maps (forward, row) to the values that become NaN, `corrupted` an id to (phase, first step, rows,
    values). With `fork` the last prompt is given two returned sequences.
    """

    nan: Mapping[tuple[int, int], int] = field(default_factory=dict)
    corrupted: Mapping[str, tuple[str, int, int, int]] = field(default_factory=dict)
    prompts: Mapping[str, Prompt] = field(default_factory=lambda: ABC)
    padding_nan_rows: int = 0
    rows: int = 12  # 3 requests of 4 tokens
    steps: int | None = None
    requests: int = 3
    how: Mapping[str, Any] = field(default_factory=dict)
    cancel_b_at: int | None = None  # the forward during which somebody cancels b
    fork: bool = False


SYNCHRONOUS = {
    # The first batch holds all three prompts; rows are a, b, c from then on.
    "clean": Case(steps=4),
    "prefill": Case({(1, 1): 5}, {"b": ("prefill", 1, 1, 5)}),
    "decode": Case({(3, 2): 2}, {"c": ("decode", 3, 1, 2)}),
    "the last token": Case({(4, 0): 1}, {"a": ("decode", 4, 1, 1)}),
    "two requests, several rows": Case(
        {(1, 0): 1, (2, 0): 2, (3, 2): 64}, {"a": ("prefill", 1, 2, 3), "c": ("decode", 3, 1, 64)}
    ),
    # b has its two tokens after forward 2: forward 3 has the rows a, c.
    "after one has ended": Case(
        {(3, 1): 4}, {"c": ("decode", 3, 1, 4)}, prompts=B_ENDS_AT_2, rows=10, steps=4
    ),
    # 4 tokens a batch: forward 1 reads 4 of a's 6 and makes one row that stands for nothing; forward 2
    # reads a's other 2 and b's 2: rows a, b. 2 x 4 tokens, 5 forwards, of which 4 hold a row that is read.
    "chunks, in the row that nobody reads": Case(
        {(1, 0): 5}, {}, prompts=CHUNKED, how=IN_CHUNKS_OF_4, rows=8, steps=4, requests=2
    ),
    "chunks, in the first row that is read": Case(
        {(2, 0): 5}, {"a": ("prefill", 1, 1, 5)}, prompts=CHUNKED, how=IN_CHUNKS_OF_4, rows=8, requests=2
    ),
    "chunks, beside them": Case(
        {(2, 1): 3}, {"b": ("prefill", 1, 1, 3)}, prompts=CHUNKED, how=IN_CHUNKS_OF_4, rows=8, requests=2
    ),
    # Rows d; then d, a, a__child#0: the fork is done when all of a's prompt but its last token was read.
    "fork, the parent": Case(
        {(2, 1): 2},
        {"a": ("prefill", 2, 1, 2)},
        prompts={"d": Prompt([11, 12]), "a": Prompt([7, 8, 9])},
        fork=True,
    ),
    "fork, the child": Case(
        {(2, 2): 2, (3, 2): 1},
        {"a__child#0": ("prefill", 2, 2, 3)},
        prompts={"d": Prompt([11, 12]), "a": Prompt([7, 8, 9])},
        fork=True,
    ),
    # Somebody cancels b while forward 2 runs: forward 2 was still b's, forward 3 has the rows a, c.
    "cancelled, its last row": Case({(2, 1): 2}, {"b": ("decode", 2, 1, 2)}, cancel_b_at=2, rows=10),
    "cancelled, the rows after it": Case({(3, 1): 2}, {"c": ("decode", 3, 1, 2)}, cancel_b_at=2, rows=10),
    # After 5 tokens of each the cache is full: c is moved out, and is one request all the same. a and b end
    # with forward 12; c reads its 4 + 5 tokens again at forward 13 and makes 7 more, until forward 19.
    "moved out of the cache": Case(
        {(4, 2): 1, (13, 0): 3, (16, 0): 2},
        {"c": ("decode", 4, 3, 6)},
        prompts=FILLS_THE_CACHE,
        how=EIGHT_BLOCKS,
        rows=36,
        steps=19,
    ),
    "moved to the host's memory": Case(
        {(4, 2): 1, (13, 0): 3, (16, 0): 2},
        {"c": ("decode", 4, 3, 6)},
        prompts=FILLS_THE_CACHE,
        how={**EIGHT_BLOCKS, "cpu_offload_space": 0.001},
        rows=36,
        steps=19,
    ),
    "log probabilities share the buffer": Case(
        {(3, 2): 2}, {"c": ("decode", 3, 1, 2)}, how={"return_logprobs": True}
    ),
    "the same prompt twice shares its blocks": Case(
        {(2, 1): 1},
        {"b": ("decode", 2, 1, 1)},
        prompts={"a": Prompt([7, 8, 9, 10, 11]), "b": Prompt([7, 8, 9, 10, 11])},
        how={"allow_block_sharing": True},
        rows=8,
        requests=2,
    ),
}

# One batch is launched before the one before it is read.
ASYNCHRONOUS = {
    # Forward 5 was launched before the tokens of forward 4 were read, which ended all three: padding.
    "clean": Case(steps=5),
    "prefill": Case({(1, 1): 5}, {"b": ("prefill", 1, 1, 5)}),
    "decode": Case({(3, 2): 2}, {"c": ("decode", 3, 1, 2)}),
    "the last token": Case({(4, 0): 1}, {"a": ("decode", 4, 1, 1)}),
    "a step after the last": Case({(5, 0): 1, (5, 2): 1}, padding_nan_rows=2),
    # Forward 3 was launched with b in it, before b's second token was read: rows a, -, c; then a, c.
    "one that has ended": Case({(3, 1): 4}, padding_nan_rows=1, prompts=B_ENDS_AT_2, rows=10),
    "beside one that has ended": Case(
        {(3, 2): 4, (4, 1): 1}, {"c": ("decode", 3, 2, 5)}, prompts=B_ENDS_AT_2, rows=10
    ),
    "chunks": Case(
        {(1, 0): 5, (2, 1): 3},
        {"b": ("prefill", 1, 1, 3)},
        prompts=CHUNKED,
        how=IN_CHUNKS_OF_4,
        rows=8,
        requests=2,
    ),
    # The fork is done when forward 1 is read, after forward 2 was launched: it shows in forward 3.
    "fork, the child": Case(
        {(3, 2): 2},
        {"a__child#0": ("prefill", 3, 1, 2)},
        prompts={"d": Prompt([11, 12]), "a": Prompt([7, 8, 9])},
        fork=True,
    ),
    # Cancelled while forward 2 runs, dropped as forward 3 is prepared; forward 2 is read after that.
    "cancelled while its step was in flight": Case(
        {(2, 1): 2}, {"b": ("decode", 2, 1, 2)}, cancel_b_at=2, rows=10
    ),
    "cancelled, the rows after it": Case({(3, 1): 2}, {"c": ("decode", 3, 1, 2)}, cancel_b_at=2, rows=10),
    # c is moved out as forward 6 is prepared, with forward 5 in flight: its row there is thrown away, and
    # made again. a and b end with forward 12, forward 13 is theirs for nothing; c is back at forward 14.
    "moved out of the cache while its step was in flight": Case(
        {(5, 2): 2}, padding_nan_rows=1, prompts=FILLS_THE_CACHE, how=EIGHT_BLOCKS, rows=36
    ),
    "moved out of the cache": Case(
        {(4, 2): 1, (14, 0): 3},
        {"c": ("decode", 4, 2, 4)},
        prompts=FILLS_THE_CACHE,
        how=EIGHT_BLOCKS,
        rows=36,
    ),
    "moved to the host's memory while its step was in flight": Case(
        {(5, 2): 2},
        padding_nan_rows=1,
        prompts=FILLS_THE_CACHE,
        how={**EIGHT_BLOCKS, "cpu_offload_space": 0.001},
        rows=36,
    ),
    "log probabilities share the buffer": Case(
        {(3, 2): 2}, {"c": ("decode", 3, 1, 2)}, how={"return_logprobs": True}
    ),
}

CASES = [
    *(pytest.param(case, False, id=f"synchronous: {name}") for name, case in SYNCHRONOUS.items()),
    *(pytest.param(case, True, id=f"asynchronous: {name}") for name, case in ASYNCHRONOUS.items()),
]


@pytest.mark.parametrize(("case", "is_async"), CASES)
def test_charges_each_row_to_its_request(case: Case, *, is_async: bool, model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle:
        outputs = run(model, case, is_async=is_async)
        totals, found = written.report(handle.probe)
    told = {name: (r.phase, r.first_step, r.rows, r.values) for name, r in found.items()}
    assert told == dict(case.corrupted)
    assert all(request.finished and request.n == 0 for request in found.values())
    assert (totals.requests, totals.rows) == (case.requests, case.rows)
    assert (totals.padding_nan_rows, totals.unattributed_nan_rows) == (case.padding_nan_rows, 0)
    assert totals.dropped_steps == {}
    assert case.steps in {None, totals.steps}
    assert made_zeros(outputs) == set(case.corrupted) & set(outputs)


def run(model: Any, case: Case, *, is_async: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        stack.enter_context(pageable_swap())
        if is_async:
            stack.enter_context(two_buffers())
        manager = manager_of(model, use_async_batching=is_async, **case.how)
        *others, last = case.prompts
        add(manager, {name: case.prompts[name] for name in others})
        manager.num_return_sequences = 2 if case.fork else 1
        add(manager, {last: case.prompts[last]})
        at = {} if case.cancel_b_at is None else {case.cancel_b_at: lambda: manager.cancel_request("b")}
        stack.enter_context(following(model, Forwards(case.nan, at)))
        return run_to_end(manager, case.requests - len(at))


def made_zeros(outputs: Mapping[str, Any]) -> set[str]:
    """Return the ids of the outputs that the engine made of NaN."""
    assert all(set(output.generated_tokens) <= {0, LIKED} for output in outputs.values())
    return {name for name, output in outputs.items() if 0 in output.generated_tokens}
