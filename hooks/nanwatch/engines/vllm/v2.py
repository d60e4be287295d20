"""The second model runner: `sample` makes the raw logits itself, on its way to the sampler.

So the model's `compute_logits` is listened to while `sample_tokens` runs. What it returns inside
`sample` is what is sampled from; what it returns after that, from a slice of the same hidden
states, are prompt logprobs.
    rows of request i: cu_num_logits_np[i] to cu_num_logits_np[i + 1]; [0, 3, 4] -> row ends [3, 4]
With adaptive verification the host knows an upper bound only: each row's owner is taken from the
device, and copied beside the counts.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nanwatch.engines.guard import Guard

from .hidden_states import offset_in
from .output import Outlet
from .replaced import replace, replaced
from .rows import Rows, Span, phases, prompt_pieces
from .sharded import Exchange


class V2:
    """Watches one runner of the second kind."""

    def __init__(self, runner: Any, outlet: Outlet, guard: Guard) -> None:
        self._runner, self._outlet, self._guard = runner, outlet, guard
        self._sampling = False
        self._batch: Any = None  # the one that is being sampled from, and then looked at for prompts
        self._hidden_states: Tensor | None = None

    def install(self) -> None:
        """Put the methods around the runner's own."""
        replace(self._runner, "execute_model", self._execute_model)
        replace(self._runner, "sample_tokens", self._sample_tokens)
        replace(self._runner, "sample", self._sample)
        if hasattr(self._runner, "pool"):
            replace(self._runner, "pool", self._pool)
        if getattr(self._runner, "batch_sharder", None) is not None:
            Exchange(self._runner, lambda *seen: self._guard.run(self._look_at_own, *seen)).install()

    def _execute_model(self, original: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._outlet.before(scheduler_output)
        return original(scheduler_output, *args, **kwargs)

    def _pool(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        return output if output is None else self._outlet.deliver_pooled(output)

    def _sample_tokens(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._outlet.begin()
        self._batch = self._hidden_states = None
        with self._listening():
            output = original(*args, **kwargs)
        self._batch = self._hidden_states = None  # nothing of a step is kept past it
        return self._outlet.deliver(output)

    def _listening(self) -> ExitStack:
        """Listen to the model until the stack is left; where that cannot be, a step is not looked at."""
        stack = ExitStack()
        self._guard.run(
            lambda: stack.enter_context(replaced(self._runner.model, "compute_logits", self._compute_logits))
        )
        return stack

    def _sample(
        self, original: Any, hidden_states: Tensor, input_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._batch, self._hidden_states, self._sampling = input_batch, hidden_states, True
        try:
            return original(hidden_states, input_batch, *args, **kwargs)
        finally:
            self._sampling = False

    def _compute_logits(self, compute: Any, of: Tensor, *args: Any, **kwargs: Any) -> Any:
        logits = compute(of, *args, **kwargs)
        self._guard.run(self._look, logits, of)
        return logits

    def _look(self, logits: Tensor | None, of: Tensor) -> None:
        if logits is None or self._batch is None:
            return
        if self._sampling:
            self._outlet.observe(logits, self._rows(self._batch, len(logits)))
            return
        offset = offset_in(self._hidden_states, of) if self._hidden_states is not None else None
        if offset is not None:
            self._outlet.observe_prompt(logits, prompt_pieces(offset, len(of), self._prompts(self._batch)))

    def _look_at_own(self, logits: Tensor, batch: Any) -> None:
        if batch.num_reqs:
            self._outlet.observe(logits, self._rows(batch, len(logits)))

    def _rows(self, batch: Any, rows: int) -> Rows:
        ids = batch.req_ids[: batch.num_reqs]
        ends = batch.cu_num_logits_np[1 : batch.num_reqs + 1].tolist()
        drafts = [end - start - 1 for start, end in pairwise((0, *ends))]
        phase = phases(drafts, _prefilling(batch, drafts))
        if getattr(self._runner, "adaptive_verification", None) is not None:
            return Rows(ids, row_owner=_owners(batch, rows), phase=phase)
        return Rows(ids, row_ends=ends, phase=phase)

    def _prompts(self, batch: Any) -> list[Span]:
        """Say which hidden states are looked at for prompt logprobs; the sampled one is not among them."""
        starts = batch.query_start_loc_np[: batch.num_reqs + 1].tolist()
        left = _prompt_rows_left(batch)
        worker = getattr(self._runner, "prompt_logprobs_worker", None)
        wanted = left if worker is None else worker.uses_prompt_logprobs[batch.idx_mapping_np]
        return [
            Span(name, starts[i], min(starts[i + 1], starts[i] + left[i]))
            for i, name in enumerate(batch.req_ids[: batch.num_reqs])
            if wanted[i] and left[i] > 0
        ]


def _prompt_rows_left(batch: Any) -> list[int]:
    """Return how many prompt logits each request still has; all of a step's tokens in older versions."""
    lengths = getattr(batch, "prefill_len_np", None)
    if lengths is not None:
        left: list[int] = (lengths - batch.num_computed_prefill_tokens_np - 1).tolist()
        return left
    return [tokens if tokens > 1 else 0 for tokens in batch.num_scheduled_tokens.tolist()]


def _prefilling(batch: Any, drafts: Sequence[int]) -> Sequence[bool] | None:
    """Say whose prompts are not all in the cache yet; older versions do not, there the tokens tell."""
    known = getattr(batch, "is_prefilling_np", None)
    if known is None:
        tokens = batch.num_scheduled_tokens[: batch.num_reqs].tolist()
        known = [number > draft + 1 for number, draft in zip(tokens, drafts, strict=True)]
        return known if any(known) else None
    return known[: batch.num_reqs].tolist() if known[: batch.num_reqs].any() else None


def _owners(batch: Any, rows: int) -> Tensor:
    """Return each row's request, [R] int32 on the device, -1 where the batch has no such request.

    The device names a row's request by its slot: slots of the batch [7, 2], rows of slots
    [7, 7, 2] -> owners [0, 0, 1].
    """
    slots, owned = batch.idx_mapping[: batch.num_reqs], batch.expanded_idx_mapping[:rows]
    same = owned.unsqueeze(1) == slots.unsqueeze(0)  # [R, Q]
    places = torch.arange(1, len(slots) + 1, dtype=torch.int32, device=slots.device)
    owners: Tensor = (same * places).sum(1, dtype=torch.int32) - 1
    return owners
