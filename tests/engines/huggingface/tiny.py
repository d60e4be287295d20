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
from transformers import LlamaConfig, LlamaForCausalLM

V = 64
PAD, BOS, EOS = 0, 1, 2
POISON = 3  # its embedding is NaN
LIKED = 9  # what a sequence goes on with, unless the plan says otherwise


def tiny_llama() -> Any:
    """Return a model whose logits depend on nothing but the plan, and on POISON in the prompt."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval()
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = float("nan")
    return model


def prompts(*texts: list[int]) -> dict[str, Tensor]:
    """Return a batch of token lists, padded on the left: [[5], [5, 6]] -> [[0, 5], [5, 6]]."""
    longest = max(len(text) for text in texts)
    ids = [[PAD] * (longest - len(text)) + text for text in texts]
    mask = [[0] * (longest - len(text)) + [1] * len(text) for text in texts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


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
