"""A dozen architectures of different kinds; `make architectures` tries them all."""

import pytest

from benchmarks.architecture import PASSES, try_architecture
from benchmarks.architectures import page_of

KINDS = {
    "gpt2": "a decoder",
    "mixtral": "experts",
    "gpt_oss": "experts, attention with sinks",
    "deepseek_v3": "experts, latent attention",
    "mamba2": "a state space, no attention",
    "rwkv": "a recurrence, no cache of keys and values",
    "recurrent_gemma": "a recurrence and local attention",
    "jamba": "a state space, attention and experts in turn",
    "gemma3": "the text of a model that sees",
    "bert": "an encoder that is used as a decoder",
    "bart": "the decoder of an encoder-decoder",
    "xlnet": "permutations; the logits are of a position that is added",
}


@pytest.mark.parametrize("model_type", KINDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_planted_nan_is_charged_to_its_request(model_type: str) -> None:
    verdict = try_architecture(model_type)
    assert (verdict.result, verdict.why) == (PASSES, "")


def test_the_page_says_what_was_tried_and_why_not() -> None:
    page = page_of([("two", "Two", "passes", "", 1000), ("one", "One", "cannot be built", "E: no", 0)])
    assert "Of 2: cannot be built 1, passes 1." in page
    assert page.endswith("| one | One | cannot be built: E: no |\n| two | Two | passes |\n")
