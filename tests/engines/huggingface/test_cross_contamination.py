"""One request's NaN in the answers of others: who is named is who was answered wrongly, no more and no less.

Attention multiplies what it masks with zero, and 0 x NaN is NaN: a prompt with a NaN in it spoils whoever
is in a batch with it. Nobody says beforehand whom. The witness is the answer of each prompt alone, on a
model without the NaN.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

import nanwatch
from tests.engines.huggingface.batches import (
    Forwards,
    Prompt,
    add,
    following,
    manager_of,
    quick_collections,
    run_to_end,
)
from tests.engines.huggingface.tiny import POISON, V, tiny_llama
from tests.engines.written import Written

CLEAN = {"a": [7, 8, 9, 10], "c": [11, 12, 13], "d": [20, 21], "e": [22, 23, 24]}
POISONED = {"b": [7, POISON, 8]}


def silent_llama() -> Any:
    """Return a model that says neither 0, which stands for NaN, nor the poisoned token."""
    model = tiny_llama()
    with torch.no_grad():
        model.get_output_embeddings().weight[[0, POISON]] = 0.0
    return model


@pytest.fixture(scope="module")
def sick() -> Iterator[Any]:
    with quick_collections():
        yield silent_llama()


@pytest.fixture(scope="module")
def alone(sick: Any) -> dict[str, list[int]]:
    """What each prompt is answered alone by the same model with a finite embedding in place of NaN."""
    healthy = silent_llama()
    with torch.no_grad():
        healthy.get_input_embeddings().weight[POISON] = 0.5
    return {name: answers(healthy, [{name: tokens}])[name] for name, tokens in {**CLEAN, **POISONED}.items()}


def answers(model: Any, waves: Sequence[Mapping[str, list[int]]], **how: Any) -> dict[str, list[int]]:
    """Answer one wave of prompts after the other has ended, in one session."""
    manager = manager_of(model, **how)
    found: dict[str, list[int]] = {}
    add(manager, {name: Prompt(tokens, new_tokens=6) for name, tokens in waves[0].items()})
    manager.start()
    try:
        for number, wave in enumerate(waves):
            if number:
                add(manager, {name: Prompt(tokens, new_tokens=6) for name, tokens in wave.items()})
            for _ in wave:
                output = manager.get_result(timeout=60)
                found[output.request_id] = output.generated_tokens
    finally:
        manager.stop(block=True, timeout=60)
    return found


def only(*names: str) -> dict[str, list[int]]:
    return {name: {**CLEAN, **POISONED}[name] for name in names}


CASES = {
    # waves, settings -> who is corrupted
    "three in one batch": ([only("a", "b", "c")], {}, {"a", "b", "c"}),
    "the poisoned one is the first": ([only("b", "a", "c")], {}, {"a", "b", "c"}),
    "a batch each": ([only("a"), only("b"), only("c")], {}, {"b"}),
    "those that came after it, into the blocks that it left": (
        [only("b"), only("a", "c", "d", "e")],
        {"num_blocks": 6},
        {"b"},
    ),
    "no poison": ([only("a", "c", "d", "e")], {}, set()),
}


@pytest.mark.parametrize("attention", ["sdpa", "paged|eager"])
@pytest.mark.parametrize(("waves", "how", "expected"), CASES.values(), ids=CASES.keys())
def test_the_corrupted_are_those_whose_answers_differ(  # noqa: PLR0913, PLR0917  a table's columns
    waves: list[dict[str, list[int]]],
    how: dict[str, Any],
    expected: set[str],
    attention: str,
    sick: Any,
    alone: dict[str, list[int]],
    written: Written,
) -> None:
    sick.set_attn_implementation(attention)
    with nanwatch.watch_generate(sick) as handle:
        answered = answers(sick, waves, **how)
        corrupted = set(written.corrupted(handle.probe))
    differ = {name for name, tokens in answered.items() if tokens != alone[name]}
    assert corrupted == differ
    assert corrupted == expected
    assert all(answered[name] == [0] * 6 for name in corrupted)


def test_a_nan_that_is_made_behind_the_attention_stays_with_its_request(
    sick: Any, alone: dict[str, list[int]], written: Written
) -> None:
    """In a row of the logits: that token is wrong, and so are those that follow from it."""
    sick.set_attn_implementation("sdpa")
    prompts = {name: Prompt(tokens, new_tokens=6) for name, tokens in only("a", "c", "d").items()}
    plan = Forwards({(2, 1): V}, likes_liked=False)
    with nanwatch.watch_generate(sick) as handle, following(sick, plan):
        manager = manager_of(sick)
        add(manager, prompts)
        outputs = run_to_end(manager, 3)
        corrupted = set(written.corrupted(handle.probe))
    differ = {name for name, output in outputs.items() if output.generated_tokens != alone[name]}
    assert corrupted == differ == {"c"}
