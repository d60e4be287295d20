"""A Llama of two layers made on the spot, and two ways to plant a NaN in it.

a token whose embedding is NaN    poisons every request that holds it, from the prefill on
a Plan                            writes into one exact row of the raw logits, at one forward
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

V = 64
PAD, BOS, EOS = 0, 1, 2
POISON = 3  # its embedding is NaN
LIKED = 9  # what a sequence goes on with, unless the plan says otherwise


def tiny_llama(
    kind: type[LlamaForCausalLM] = LlamaForCausalLM,
    eos: int | None = EOS,
    layers: int = 2,
    words: int = V,
) -> Any:
    """Return a model whose logits depend on nothing but the plan, and on POISON in the prompt."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=eos,
    )
    model: Any = kind(config)
    model.eval()
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = float("nan")
    return model


def prompts(*texts: list[int], padded: str = "left") -> dict[str, Tensor]:
    """Return a batch of token lists, padded on the left: [[5], [5, 6]] -> [[0, 5], [5, 6]]."""
    ids, mask = ([_row(text, texts, padded, which) for text in texts] for which in ("ids", "mask"))
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def _row(text: list[int], texts: tuple[list[int], ...], padded: str, which: str) -> list[int]:
    padding = [PAD if which == "ids" else 0] * (max(map(len, texts)) - len(text))
    values = text if which == "ids" else [1] * len(text)
    return padding + values if padded == "left" else values + padding


@dataclass(frozen=True)
class Plan:
    """What happens to the raw logits: for each (forward, row), forwards counted from 1.

    `position` is where in the row's positions, the last by default.
    """

    nan: Mapping[tuple[int, int], int] = field(default_factory=dict)  # -> how many values
    eos: frozenset[tuple[int, int]] = frozenset()
    position: int = -1

    def write(self, forward: int, logits: Tensor) -> None:
        """Change the logits [R, T, V] of one forward in place."""
        logits[..., EOS] = -100.0
        logits[..., LIKED] += 10.0
        for row in range(logits.shape[0]):
            if (forward, row) in self.eos:
                logits[row, -1, EOS] = 100.0
            if (forward, row) in self.nan:
                logits[row, self.position, : self.nan[forward, row]] = float("nan")


@contextmanager
def following(model: Any, plan: Plan) -> Iterator[None]:
    """Let the plan change what the model's head gives, before the model returns it."""
    forwards = 0

    def write(_module: Any, _args: Any, output: Tensor) -> Tensor:
        nonlocal forwards
        forwards += 1
        plan.write(forwards, output)
        return output

    hook = model.get_output_embeddings().register_forward_hook(write)
    try:
        yield
    finally:
        hook.remove()


class AllPositionsLlama(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """One of those models that know nothing of `logits_to_keep`: its logits are of every position."""

    def forward(  # without logits_to_keep, on purpose
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **kwargs
        )


def tiny_t5() -> Any:
    """Return an encoder-decoder of one layer each; its decoder returns every position."""
    torch.manual_seed(0)
    kind: Any = T5Config
    config = kind(
        vocab_size=V,
        d_model=32,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
    )
    model: Any = T5ForConditionalGeneration(config)
    return model.eval()


def tiny_bart() -> Any:
    """Return an encoder-decoder that adds a bias behind its head."""
    torch.manual_seed(0)
    config: Any = BartConfig(
        vocab_size=V,
        d_model=32,
        max_position_embeddings=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
        forced_eos_token_id=None,
    )
    model: Any = BartForConditionalGeneration(config)
    return model.eval()


def assistant(model: Any) -> Any:
    """Return the model as one that drafts two tokens at a time, whatever became of the last ones."""
    config = model.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 2, "constant"
    config.assistant_confidence_threshold = 0.0
    return model
