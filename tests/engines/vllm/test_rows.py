"""Whose a row is: by hand, and for any batch by property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanwatch.engines.vllm.rows import Rows, Span, is_warm_up, prompt_pieces, sampled_rows, spans


def test_without_drafts_each_request_has_one_row() -> None:
    assert sampled_rows(["a", "b"], None, None) == Rows(["a", "b"], None, None, "decode")


def test_a_request_whose_prompt_is_not_all_there_is_prefilled() -> None:
    assert sampled_rows(["a", "b"], None, [False, True]).phase == ("decode", "prefill")


def test_drafts_make_as_many_rows_and_one_more() -> None:
    rows = sampled_rows(["a", "b", "c"], [2, 0, 1], None)
    assert (rows.row_ends, rows.phase) == ([3, 4, 6], ("verify", "decode", "verify"))


def test_a_prefill_among_drafts_is_a_prefill() -> None:
    assert sampled_rows(["a", "b"], [3, 0], [False, True]).phase == ("verify", "prefill")


@pytest.mark.parametrize(
    "name",
    ["_warmup_0_", "_warmup_17_", "_v2_mixed_warmup_decode_0", "req_3_" + "0f" * 16],
)
def test_what_vllm_makes_up_is_never_a_request(name: str) -> None:
    assert is_warm_up([name])


@pytest.mark.parametrize(
    "name", ["req_3-5c0b6d4a", "cmpl-_warmup_0_-0-5c0b6d4a", "_warmup_0_-5c0b6d4a", "req_3_abc-5c0b6d4a", ""]
)
def test_a_client_may_call_its_request_nearly_so(name: str) -> None:
    assert not is_warm_up([name])


def test_a_batch_without_requests_is_no_warm_up() -> None:
    assert not is_warm_up([])


def test_prompt_rows_are_cut_by_request() -> None:
    """A has tokens 0 to 4, b 5, c 6 to 19; the rows of tokens 4 to 7 are asked for."""
    whose = spans(["a", "b", "c"], [0, 5, 6, 20])
    assert prompt_pieces(4, 4, whose) == [Span("a", 0, 1), Span("b", 1, 2), Span("c", 2, 4)]


def test_prompt_rows_of_nobody_are_left_out() -> None:
    """Of tokens 0 to 9 only 3 to 5 belong to a request that wants prompt logprobs."""
    assert prompt_pieces(0, 10, [Span("b", 3, 6)]) == [Span("b", 3, 6)]
    assert prompt_pieces(6, 4, [Span("b", 3, 6)]) == []


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 40), st.integers(1, 40))
def test_every_prompt_row_belongs_to_the_request_of_its_token(
    lengths: list[int], offset: int, rows: int
) -> None:
    """Token by token, the slow way."""
    starts = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    names = [f"r{at}" for at in range(len(lengths))]
    owners = [name for name, length in zip(names, lengths, strict=True) for _ in range(length)]
    pieces = prompt_pieces(offset, rows, spans(names, starts))
    found = {row: piece.request_id for piece in pieces for row in range(piece.start, piece.end)}
    assert found == {row: owners[offset + row] for row in range(rows) if offset + row < len(owners)}
