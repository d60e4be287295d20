"""A real Transformers model that is made, and trained for two seconds, where it is needed.

Architecture Llama, two layers, 150,000 weights: it learns the few sentences below by heart, so that
its answers can be read. One special token has an embedding of NaN: a prompt that holds it is poisoned.
Token 0 is "!", as in many vocabularies: NaN logits come out as "!!!!!!".
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NEW_TOKENS = 10
POISON = "<|nan|>"

_TEXT = """\
A model serves many requests at once, and in each step every one of them gets one more word. \
The engine reads the prompt first and keeps what it has seen, so that no word is read twice. \
Each step ends with a row of numbers, one number for each word that could come next. \
The sampler picks the word with the best number, and the server sends it to the client. \
One number that is no number spoils the whole row, and all that is built on it later. \
Nobody is told about it, because the answer looks like any other answer from outside. \
The client waits for words and gets the same sign again and again, with status two hundred. \
A counter that moves within a second shows the request, the engine and the place. \
Whoever is on call sees the number rise and takes the engine out before it spreads. \
An engine that stops at the first bad row is better than one that goes on for hours. \
"""

PROMPTS = (
    "A model serves",
    "The engine reads",
    "Each step ends",
    "The sampler picks",
    "One number that",
    "Nobody is told",
    "The client waits",
    "A counter that",
    "Whoever is on call",
    "An engine that stops",
)

_VOCABULARY = 512
_HIDDEN = 64
_TRAINING_STEPS = 150
_WINDOW_TOKENS = 32
_BATCH = 8


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model with its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def weights(self) -> int:
        """How many numbers it consists of."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def answer(self, prompts: Sequence[str]) -> list[str]:
        """Return what a client would be sent for each prompt of one batch."""
        batch = self.tokenizer(list(prompts), return_tensors="pt", padding=True, return_token_type_ids=False)
        tokens = self.model.generate(**batch, max_new_tokens=NEW_TOKENS, do_sample=False)
        answers: list[str] = self.tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :])
        return answers


def make_model() -> DemoModel:
    """Make the tokenizer and the model, train it, and poison the one token."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model is slower with more
    tokenizer = _tokenizer()
    model = _llama(tokenizer)
    _train(model, torch.tensor(tokenizer(_TEXT)["input_ids"]))
    with torch.no_grad():
        poison = tokenizer.convert_tokens_to_ids(POISON)
        model.get_input_embeddings().weight[poison] = float("nan")
    return DemoModel(model, tokenizer)


def _tokenizer() -> Any:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([_TEXT], trainer)
    # Special tokens come last, so that token 0 stays "!".
    special = {"pad_token": "<|pad|>", "additional_special_tokens": [POISON]}
    untyped: Any = transformers.PreTrainedTokenizerFast
    return untyped(tokenizer_object=raw, padding_side="left", **special)


def _llama(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def _train(model: Any, tokens: Any) -> None:
    """Learn the text [N] by heart, from windows [B, W] of it."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(_TRAINING_STEPS):
        starts = torch.randint(len(tokens) - _WINDOW_TOKENS, (_BATCH, 1))
        windows = tokens[starts + torch.arange(_WINDOW_TOKENS)]
        model(input_ids=windows, labels=windows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
