"""A folder with a tiny model and its tokenizer, made on the spot, as `transformers serve` takes it.

Every word is a token. Two of them make NaN:
    poison   its embedding is NaN, which attention carries to whoever is in the same batch
    spark    as the last word of a prompt it makes the first row of its own logits NaN, and no other: in the
             last layer, behind its attention, infinity meets zero
The first dimension of the hidden states is the spark's alone: no layer writes to it.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tests.engines.huggingface.tiny import EOS, POISON, V, tiny_llama

SPECIAL = ["<pad>", "<s>", "</s>", "poison", "spark"]
SPARK = 4
WORDS = [f"w{number}" for number in range(len(SPECIAL), V)]  # w5 is token 5
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def make(folder: Path) -> Path:
    """Write model and tokenizer; greedy, it makes <pad> from NaN, and otherwise only words without NaN."""
    model: Any = tiny_llama()
    with torch.no_grad():
        _plant_spark(model)
        _never_say(model, list(range(len(SPECIAL))))
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, max_new_tokens=8, eos_token_id=EOS, bos_token_id=1, pad_token_id=0
    )
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _plant_spark(model: Any) -> None:
    embeddings = model.get_input_embeddings().weight
    embeddings[:, 0] = 0.0
    embeddings[SPARK] = 0.0
    embeddings[SPARK, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    last = model.model.layers[-1].mlp
    last.gate_proj.weight[0] = 0.0
    last.gate_proj.weight[0, 0] = torch.finfo(torch.float32).max  # times more than 1: infinity
    last.up_proj.weight[0] = 0.0


def _never_say(model: Any, tokens: list[int]) -> None:
    """Give these words logits of 0, below the greatest of 59 others that are spread around 0."""
    model.get_output_embeddings().weight[tokens] = 0.0


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    assert (vocabulary["poison"], vocabulary["spark"]) == (POISON, SPARK)
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))  # noqa: S106  a token of text
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        pad_token="<pad>",  # noqa: S106
        bos_token="<s>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer
