"""Assisted decoding: the model's rows are the request's, whoever drafts; a draft is nobody's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import nanwatch
from nanwatch import NanProbe
from tests.engines.huggingface.notation import Cell, Planted, cells_of
from tests.engines.huggingface.tiny import LIKED, V, assistant, tiny_llama
from tests.engines.written import Written

NINES = torch.tensor([[LIKED] * 5])
VERIFIED = ("prefill aaa", "verify aaa", "verify a")  # 5 + 3 + 3 + 1 tokens, K = 2, 2, 0
UNKNOWN = "w0"
DRAFTS = ("draft -",) * 4  # two for each K = 2, none for K = 0


def tokenizer(words: int) -> Any:
    """Word wN is token N."""
    whole = Tokenizer(models.WordLevel(vocab={f"w{word}": word for word in range(words)}, unk_token=UNKNOWN))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    kind: Any = PreTrainedTokenizerFast
    return kind(tokenizer_object=whole, unk_token=UNKNOWN, pad_token=UNKNOWN)


def test_every_row_of_the_model_is_the_requests_and_every_draft_is_nobodys(written: Written) -> None:
    model, helper = tiny_llama(), assistant(tiny_llama())
    expected = {}
    with (
        NanProbe("both") as probe,
        nanwatch.watch_generate(model, probe=probe),
        nanwatch.watch_generate(helper, probe=probe),
    ):
        drafts = {1: 2, 2: 4, 3: 4}  # how many forwards of the assistant come before the model's n-th
        steps = 0
        for number, cell in enumerate(cells_of(VERIFIED), start=1):
            planted, drafted = Planted(VERIFIED, cell), Planted(DRAFTS)
            with planted.in_head_of(model), drafted.in_head_of(helper), nanwatch.request_ids([f"{number}a"]):
                model.generate(NINES, do_sample=False, max_new_tokens=7, assistant_model=helper)
            before = steps + drafts[cell.forward]
            expected[f"{number}a"] = (cell.phase, before + cell.forward, 1, 1)
            steps += len(planted.shapes) + len(drafted.shapes)
        for number, cell in enumerate(cells_of(DRAFTS), start=100):
            planted, drafted = Planted(VERIFIED), Planted(DRAFTS, cell)
            with planted.in_head_of(model), drafted.in_head_of(helper), nanwatch.request_ids([f"{number}a"]):
                model.generate(NINES, do_sample=False, max_new_tokens=7, assistant_model=helper)
        totals, found = written.report(probe)
    assert {name: (r.phase, r.first_step, r.rows, r.values) for name, r in found.items()} == expected
    assert (totals.padding_nan_rows, totals.unattributed_nan_rows) == (4, 0)
    assert (totals.requests, totals.dropped_steps) == (7 + 4, {})


@contextmanager
def nothing_left_to_draw_from_is_no_matter() -> Iterator[None]:
    """Let pass what Transformers itself fails with now and then, as it samples with drafts in other words.

    It may reject a token where model and draft have the same distribution, and draws from what is left of
    one without the other: 0/0. The NaN that was planted has been observed by then.
    """
    try:
        yield
    except RuntimeError as error:
        if "probability tensor contains" not in str(error):
            raise


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True, "top_k": 1}])
def test_an_assistant_with_other_words_is_nobodys_either(how: dict[str, Any], written: Written) -> None:
    """What is drafted is chance: a tokenizer lists its words in any order, the draft's head in the same."""
    model, helper = tiny_llama(), assistant(tiny_llama(words=V + 2))
    both = {"tokenizer": tokenizer(V), "assistant_tokenizer": tokenizer(V + 2), "assistant_model": helper}
    planted = Planted((), Cell(1, 0, 1, "a", "prefill"))  # the second of the rows that verify 2 tokens, or 1
    with (
        NanProbe("both") as probe,
        nanwatch.watch_generate(model, probe=probe),
        nanwatch.watch_generate(helper, probe=probe),
    ):
        with (
            nanwatch.request_ids(["a"]),
            planted.in_head_of(model),
            Planted(()).in_head_of(helper),
            nothing_left_to_draw_from_is_no_matter(),
        ):
            prompt = torch.tensor([[4, 5, 6, 7, 8]])
            model.generate(prompt, **how, **both, remove_invalid_values=True, max_new_tokens=4)
        totals, found = written.report(probe)
    assert planted.shapes[0] in ([1, 3], [1, 2])
    assert {name: (r.phase, r.rows, r.values) for name, r in found.items()} == {"a": ("prefill", 1, 1)}
    assert totals.rows == sum(samples * positions for samples, positions in planted.shapes)
    assert (totals.requests, totals.padding_nan_rows, totals.dropped_steps) == (1, 0, {})
