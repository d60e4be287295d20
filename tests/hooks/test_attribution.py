"""Rows to requests."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanwatch.attribution import Charge, Charges, Layout, attribute, check_ids, nans_to_dict


def test_without_a_mapping_row_i_belongs_to_request_i() -> None:
    assert nans_to_dict([0, 5], ["a", "b"]) == {"a": 0, "b": 5}


@pytest.mark.parametrize(
    ("counts", "row_ends", "expected"),
    [
        ([0, 0, 0, 0, 0, 0, 5, 0], [4, 8], {"a": 0, "b": 5}),
        ([0, 1, 0, 0, 0, 0, 0, 0], [4, 8], {"a": 1, "b": 0}),
        ([0, 0, 5, 0, 1], [3, 4], {"a": 5, "b": 0}),  # row 4 is padding
        ([1, 2, 3], [0, 3], {"a": 0, "b": 6}),  # a has no rows
        ([1, 2, 3], [3, 3], {"a": 6, "b": 0}),  # b has no rows
        ([9, 9], [0, 0], {"a": 0, "b": 0}),  # nobody has rows
    ],
)
def test_row_ends_give_several_rows_to_a_request(
    counts: list[int], row_ends: list[int], expected: dict[str, int]
) -> None:
    assert nans_to_dict(counts, ["a", "b"], row_ends) == expected


def test_a_mapping_names_the_row_of_each_id_and_a_row_past_the_last_is_clean() -> None:
    assert nans_to_dict([0, 7], {"b": 1, "a": 0, "late": 2}) == {"b": 7, "a": 0, "late": 0}


def test_row_owner_charges_rows_in_any_order_and_leaves_padding_out() -> None:
    layout = Layout(5, ["a", "b"], row_owner=[1, -1, 0, 1, -1])
    charged = attribute([2, 9, 0, 3, 0], layout)
    assert charged == Charges(
        requests=[Charge(1, 2, 5)], padding_nan_rows=1, unattributed_nan_rows=0, nan_rows=2, nan_values=5
    )
    assert layout.owned_rows() == 3


def test_rows_past_the_last_end_are_padding_and_charged_to_nobody() -> None:
    charged = attribute([0, 0, 0, 0, 0, 1, 1, 1], Layout(8, list("abcde")))
    assert charged == Charges(padding_nan_rows=3)


def test_rows_that_nobody_knows_are_counted_as_unattributed_never_swallowed() -> None:
    layout = Layout(3, None)
    assert attribute([0, 4, 1], layout) == Charges(unattributed_nan_rows=2, nan_rows=2, nan_values=5)
    assert layout.owned_rows() == 3


@given(st.data())
def test_every_nan_row_is_charged_exactly_once(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 4), max_size=6))
    padding = data.draw(st.integers(0, 3))
    ends = list(accumulate(lengths))
    rows = sum(lengths) + padding
    counts = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    charged = attribute(counts, Layout(rows, [str(q) for q in range(len(lengths))], ends))
    assert sum(c.rows for c in charged.requests) + charged.padding_nan_rows == sum(map(bool, counts))
    starts = [0, *ends]
    expected = [sum(counts[a:b]) for a, b in zip(starts, ends, strict=False)]
    assert {c.request: c.values for c in charged.requests} == {q: n for q, n in enumerate(expected) if n}


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(1, ["a", "b"]), "2 request ids for 1 logits rows"),
        (Layout(4, ["a", "b"], [4]), "1 row_ends for 2 request ids"),
        (Layout(4, ["a", "b"], [3, 2]), r"row_ends \[3, 2\] decrease or are below 0"),
        (Layout(4, ["a"], [-1]), r"row_ends \[-1\] decrease or are below 0"),
        (Layout(4, ["a", "b"], [2, 5]), "row_ends end at 5, past the last of 4 logits rows"),
        (Layout(2, ["a"], row_owner=[0]), "1 row owners for 2 logits rows"),
        (Layout(2, ["a"], row_owner=[0, 1]), r"row owners go from 0 to 1, expected -1 \(padding\) to 0"),
        (Layout(2, ["a"], row_owner=[-2, 0]), r"row owners go from -2 to 0, expected -1 \(padding\) to 0"),
        (Layout(2, ["a"], [2], [0, 0]), "both row_ends and row_owner"),
        (Layout(2, None, [2]), "row_ends or row_owner need request_ids"),
        (Layout(2, ["a"], phase="warmup"), "phase 'warmup' has no requests, found 1 ids"),
        (Layout(2, ["a"], phase="decoding"), "phase 'decoding' is none of decode, prefill, prompt"),
        (Layout(2, ["a"], phase=("decode", "prefill")), "2 phases for 1 request ids"),
        (Layout(2, ["a", "b"], phase=("decode", "x")), "phase 'x' is none of"),
        (Layout(2, ["a", "b"], phase=("decode", "warmup")), "phase 'warmup' has no requests, found 2 ids"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_numbers(layout: Layout, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout.check()


def test_ids_that_stand_twice_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"found 4 ids and \['a'\] twice"):
        check_ids(["a", "b", "a", "c"])


@pytest.mark.parametrize("ids", ["ab", [1], [None], [b"a"]])
def test_ids_that_are_no_strings_are_refused(ids: Sequence[str]) -> None:
    with pytest.raises(TypeError, match="request ids are"):
        check_ids(ids)
