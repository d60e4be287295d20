"""Where a slice of hidden states came from."""

import torch

from nanwatch.engines.vllm.hidden_states import offset_in

WHOLE = torch.zeros(10, 64)


def test_a_slice_is_found_by_its_address() -> None:
    assert [offset_in(WHOLE, WHOLE[at:]) for at in (0, 2, 9)] == [0, 2, 9]


def test_a_slice_of_a_slice_counts_from_the_whole() -> None:
    assert offset_in(WHOLE[2:8], WHOLE[5:6]) == 3


def test_what_is_not_a_slice_has_no_place() -> None:
    """A copy; the same storage before the whole begins; columns; nothing at all."""
    assert offset_in(WHOLE, WHOLE[2:4].clone()) is None
    assert offset_in(WHOLE[5:], WHOLE[2:4]) is None
    assert offset_in(WHOLE, WHOLE[:, 3:]) is None
    assert offset_in(WHOLE[:0], WHOLE) is None
    assert offset_in(WHOLE, WHOLE[10:]) is None
