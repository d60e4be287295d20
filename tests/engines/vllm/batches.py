"""Runners with a batch and nothing else: what stands for a GPU that the second runner would need.

Only what the adapter reads is there, with the names and shapes of vLLM 0.32.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HIDDEN = 4


class Array(list[Any]):
    """As much of a numpy array as is read; numpy is no dependency of nanwatch."""

    def tolist(self) -> list[Any]:
        """Return plain values."""
        return list(self)

    def any(self) -> bool:
        """Whether one is true."""
        return any(self)

    def __getitem__(self, at: Any) -> Any:
        """Slices stay arrays; an array picks."""
        if isinstance(at, Array):
            return Array(self[index] for index in at)
        found = super().__getitem__(at)
        return Array(found) if isinstance(at, slice) else found

    def __lt__(self, other: Any) -> Any:
        """Compare element by element."""
        return Array(a < b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: Any) -> "Array":
        """Subtract element by element."""
        others = other if isinstance(other, list) else [other] * len(self)
        return Array(a - b for a, b in zip(self, others, strict=True))


def logits(rows: int, bad: Sequence[int] = ()) -> Tensor:
    """Return [rows, 8] logits with two NaNs in each bad row."""
    made = torch.zeros(rows, 8)
    made[list(bad), 2:4] = float("nan")
    return made


class Model(torch.nn.Module):
    """Returns the logits that it was given, one call after the other."""

    def __init__(self, *calls: Tensor) -> None:
        super().__init__()
        self.calls = list(calls)

    def compute_logits(self, _hidden_states: Tensor) -> Tensor:
        """As a model does: [n, HIDDEN] -> [n, V]."""
        return self.calls.pop(0)


class Second:
    """The second runner: it samples inside `sample_tokens`, then makes prompt logits."""

    def __init__(self, model: Model, batch: Any, prompts: Sequence[tuple[int, int]] = ()) -> None:
        self.model, self.batch, self.prompts = model, batch, prompts
        self.hidden_states = torch.zeros(64, HIDDEN)
        self.prompt_logprobs_worker = SimpleNamespace(uses_prompt_logprobs=Array([True] * 16))
        self.adaptive_verification: Any = None
        self.batch_sharder: Any = None
        self.output: Any = "tokens"
        self.samples: Callable[..., Any] = lambda hidden: self.model.compute_logits(hidden).fill_(0)

    def execute_model(self, scheduler_output: Any, _tensors: Any = None) -> None:
        """Run the model."""

    def sample_tokens(self, grammar_output: Any = None) -> Any:
        """Sample, then do what prompt logprobs need."""
        self.sample(self.hidden_states, self.batch, grammar_output)
        for start, end in self.prompts:
            self.model.compute_logits(self.hidden_states[start:end])
        return self.output

    def sample(self, hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> None:
        """Make the logits, and change them in place as masks do."""
        self.samples(hidden_states[: input_batch.num_reqs])


def second_batch(ids: Sequence[str], rows: Sequence[int], tokens: Sequence[int] = (), **more: Any) -> Any:
    """Return a batch of `rows` logits rows and `tokens` tokens for each request."""
    tokens = tokens or rows
    cumulative = Array([sum(rows[:at]) for at in range(len(rows) + 1)])
    starts = Array([sum(tokens[:at]) for at in range(len(tokens) + 1)])
    return SimpleNamespace(
        **{
            "req_ids": list(ids),
            "num_reqs": len(ids),
            "idx_mapping": torch.arange(len(ids)),
            "idx_mapping_np": Array(range(len(ids))),
            "expanded_idx_mapping": torch.arange(len(ids)).repeat_interleave(torch.tensor(rows)),
            "num_scheduled_tokens": Array(tokens),
            "query_start_loc_np": starts,
            "cu_num_logits_np": cumulative,
            "is_prefilling_np": Array([False] * len(ids)),
            "prefill_len_np": Array([0] * len(ids)),
            "num_computed_prefill_tokens_np": Array([0] * len(ids)),
        }
        | more
    )
