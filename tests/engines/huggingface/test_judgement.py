"""Who made a NaN and who caught it: the rules at the top of judgement.py, each by an example."""

import torch
from torch import Tensor

from nanwatch.engines.huggingface.continuous.judgement import Evidence, Verdict, evidence_of, judge

NOBODY: frozenset[str] = frozenset()


def new(layer: int) -> Evidence:
    return Evidence(layer, 1, is_new=True)


def old(layer: int) -> Evidence:
    return Evidence(layer, 1, is_new=False)


def names(*of: str) -> frozenset[str]:
    return frozenset(of)


def test_the_earliest_layer_tells_who_made_it() -> None:
    """The example at the top: layers 3, 2, 3."""
    verdict = judge({"a": new(3), "b": new(2), "c": new(3)}, names("a", "b", "c"))
    assert verdict == Verdict(names("b"), names("a", "c"))


def test_two_of_the_same_layer_made_it_both() -> None:
    verdict = judge({"a": new(0), "b": new(0), "c": new(1)}, names("a", "b", "c"))
    assert verdict == Verdict(names("a", "b"), names("c"))


def test_who_has_it_in_no_kv_but_in_its_row_made_it_where_nobody_has_it_in_the_kv() -> None:
    assert judge({}, names("a")) == Verdict(names("a"), NOBODY)
    assert judge({"b": new(1)}, names("a", "b")) == Verdict(names("b"), names("a"))


def test_a_culprit_needs_no_row() -> None:
    assert judge({"chunk": new(0), "a": new(1)}, names("a")) == Verdict(names("chunk"), names("a"))


def test_what_is_of_the_past_is_forgiven_once() -> None:
    found = {"a": old(0), "b": old(1)}
    assert judge(found, names("a", "b")) == Verdict(NOBODY, names("a", "b"), warned=names("a"))
    again = judge(found, names("a", "b"), warned_before=names("a"))
    assert again == Verdict(names("a"), names("b"))


def test_a_new_one_beside_one_of_the_past_is_ended_alone() -> None:
    verdict = judge({"a": old(0), "b": new(0)}, names("a", "b"))
    assert verdict == Verdict(names("b"), names("a"), warned=names("a"))


def test_where_somebody_left_with_a_nan_nobody_is_blamed() -> None:
    verdict = judge({"a": new(1)}, names("a", "b"), somebody_left=True)
    assert verdict == Verdict(NOBODY, names("a", "b"))


def counts(*bad: tuple[int, int, int]) -> Tensor:
    """Return a block of two layers and four tokens with (layer, token, values)."""
    block = torch.zeros(2, 4, dtype=torch.int64)
    for layer, token, values in bad:
        block[layer, token] = values
    return block


def test_evidence_is_of_the_first_layer_and_of_the_tokens_that_are_the_requests_own() -> None:
    """Six tokens in the blocks 9 and 5, of which the step wrote the last: the second of block 5."""

    def found(**bad: tuple[int, int, int]) -> Evidence | None:
        blocks = {int(name[1:]): counts(where) for name, where in bad.items()}
        return evidence_of([9, 5], blocks, tokens=6, new_from=5)

    assert found(b5=(1, 1, 8)) == Evidence(1, 8, is_new=True)
    assert found(b5=(1, 0, 8)) == Evidence(1, 8, is_new=False)
    assert found(b9=(1, 3, 2), b5=(0, 1, 3)) == Evidence(0, 3, is_new=True)
    assert found(b9=(0, 3, 2), b5=(0, 1, 3)) == Evidence(0, 5, is_new=True)
    assert found(b9=(0, 3, 2), b5=(1, 1, 3)) == Evidence(0, 2, is_new=False)


def test_what_stands_behind_its_tokens_or_in_others_blocks_is_no_evidence() -> None:
    found = {5: counts((0, 2, 1)), 7: counts((0, 0, 1))}
    assert evidence_of([9, 5], found, tokens=6, new_from=5) is None
