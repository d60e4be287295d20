"""Whose the rows of a batch are, in states that the engine is seldom in; test_continuous.py has the rest."""

from typing import Any

from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    RequestState,
    RequestStatus,
)

from nanwatch.engines.huggingface.continuous.rows import BatchRows, read_rows, row_count


def scheduled(name: str, *, has_token: bool = True, status: RequestStatus = RequestStatus.DECODING) -> Any:
    """A request that was given tokens before."""
    state = RequestState(request_id=name, initial_tokens=[7], generated_tokens=[9])
    state.status = status
    return FutureRequestState(state, has_token, {}, 1)


def test_requests_that_go_on_have_a_row_each() -> None:
    assert read_rows([scheduled("a"), scheduled("b")]) == BatchRows(2, ["a", "b"], None, "decode")


def test_one_that_reads_its_tokens_again_in_chunks_has_no_row_until_the_last() -> None:
    batch = [scheduled("a"), scheduled("back", has_token=False), scheduled("b")]
    assert read_rows(batch) == BatchRows(2, ["a", "b"], None, "decode")
    assert row_count(batch) == 2


def test_rows_whose_token_is_thrown_away_are_nobodys() -> None:
    batch = [
        scheduled("ended", status=RequestStatus.FINISHED),
        scheduled("a"),
        scheduled("out", status=RequestStatus.PENDING),
        scheduled("failed", status=RequestStatus.FAILED),
        scheduled("b"),
    ]
    assert read_rows(batch) == BatchRows(5, ["a", "b"], [-1, 0, -1, -1, 1], ["decode", "decode"])


def test_an_id_that_stands_twice_is_one_request() -> None:
    batch = [scheduled("a"), scheduled("b"), scheduled("a")]
    assert read_rows(batch) == BatchRows(3, ["a", "b"], [0, 1, 0], ["decode", "decode"])
