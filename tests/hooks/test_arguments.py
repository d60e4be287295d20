"""What is said about a step is checked at every step, also where it was said before."""

import pytest

from nanwatch.arguments import Layouts

IDS = ["a", "b", "c"]


def test_a_step_like_the_last_one_is_not_laid_out_anew() -> None:
    layouts = Layouts()
    first = layouts.layout(3, list(IDS), None, None, "decode")
    assert layouts.layout(3, list(IDS), None, None, "decode") is first


@pytest.mark.parametrize("phase", ["prefill", ["prefill", "decode", "decode"]])
def test_another_phase_is_another_layout(phase: str | list[str]) -> None:
    layouts = Layouts()
    layouts.layout(3, IDS, None, None, "decode")
    assert layouts.layout(3, IDS, None, None, phase).phase_of(0) == "prefill"
    assert layouts.layout(3, IDS, None, None, "decode").phase_of(0) == "decode"


def test_fewer_rows_for_the_same_requests_are_refused_after_any_number_of_steps() -> None:
    layouts = Layouts()
    layouts.layout(3, IDS, None, None, "decode")
    with pytest.raises(ValueError, match="3 request ids for 2 logits rows"):
        layouts.layout(2, IDS, None, None, "decode")
    assert layouts.layout(4, IDS, None, None, "decode").owner_of(3) == -1


def test_ends_and_owners_between_two_plain_steps_are_their_steps_alone() -> None:
    layouts = Layouts()
    plain = layouts.layout(3, IDS, None, None, "decode")
    assert layouts.layout(3, IDS, [1, 1, 3], None, "decode").owner_of(1) == 2
    assert layouts.layout(3, IDS, None, [2, -1, 0], "decode").owner_of(0) == 2
    assert layouts.layout(3, IDS, None, None, "decode") is plain


def test_nobodys_rows_and_padding_are_not_taken_for_each_other() -> None:
    layouts = Layouts()
    assert layouts.layout(3, None, None, None, "decode").request_ids is None
    assert layouts.layout(3, [], None, None, "decode").request_ids == []
    assert layouts.layout(3, None, None, None, "decode").request_ids is None


def test_a_list_that_the_caller_changes_afterwards_is_the_callers() -> None:
    layouts = Layouts()
    ids = ["a", "b"]
    layout = layouts.layout(2, ids, None, None, "decode")
    ids[0] = "z"
    assert layout.request_ids == ["a", "b"]
    assert layouts.layout(2, ids, None, None, "decode").request_ids == ["z", "b"]
