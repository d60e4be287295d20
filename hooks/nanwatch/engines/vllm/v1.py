"""The first model runner: `execute_model` leaves the raw logits for `sample_tokens` to find.

On entry of `sample_tokens` they are in `execute_model_state`, before the grammar's bitmask and all
masks and penalties. The batch still stands in `input_batch`, its ids are copied: the next step
changes them in place. With drafts [2, 0] there are 3 + 1 rows.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from nanwatch.engines.guard import Guard

from .hidden_states import offset_in
from .output import Outlet
from .replaced import replace, replaced
from .rows import Rows, Span, prompt_pieces, sampled_rows, spans


class V1:
    """Watches one runner of the first kind."""

    def __init__(self, runner: Any, outlet: Outlet, guard: Guard) -> None:
        self._runner, self._outlet, self._guard = runner, outlet, guard
        self._pools = bool(getattr(runner, "is_pooling_model", False))
        self._decoding = Rows([])  # of a batch in which every prompt was in the cache

    def install(self) -> None:
        """Put the methods around the runner's own."""
        replace(self._runner, "execute_model", self._execute_model)
        replace(self._runner, "sample_tokens", self._sample_tokens)
        if hasattr(self._runner, "_get_prompt_logprobs_dict"):
            replace(self._runner, "_get_prompt_logprobs_dict", self._prompt_logprobs)

    def _execute_model(self, original: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._outlet.before(scheduler_output)
        output = original(scheduler_output, *args, **kwargs)
        return self._outlet.deliver_pooled(output) if self._pools and output is not None else output

    def _sample_tokens(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._outlet.begin()
        self._guard.run(self._look)
        return self._outlet.deliver(original(*args, **kwargs))

    def _look(self) -> None:
        state = self._runner.execute_model_state
        if state is None or state.logits is None:
            return
        batch = self._runner.input_batch
        metadata = state.spec_decode_metadata
        drafts = None if metadata is None else metadata.num_draft_tokens
        self._outlet.observe(state.logits, self._rows(batch, batch.req_ids[: batch.num_reqs], drafts))

    def _rows(self, batch: Any, ids: list[str], drafts: Sequence[int] | None) -> Rows:
        """Lay out the rows of a step.

        The same requests as before are not asked again whose prompts are not all in the cache yet: who
        decodes goes on to decode, or leaves.
        """
        if ids == self._decoding.request_ids:
            return self._decoding if drafts is None else sampled_rows(ids, drafts, None)
        waiting = batch.num_computed_tokens_cpu[: len(ids)] < batch.num_prompt_tokens[: len(ids)]
        if waiting.any():
            self._decoding = Rows([])
            return sampled_rows(ids, drafts, waiting.tolist())
        self._decoding = Rows(ids)
        return sampled_rows(ids, drafts, None)

    def _prompt_logprobs(self, original: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Look at the logits that are made of prompts, which are asked for on the way."""
        if not getattr(self._runner, "num_prompt_logprobs", True):
            return original(hidden_states, *args, **kwargs)

        def compute_logits(compute: Any, of: Tensor, *more: Any, **named: Any) -> Any:
            logits = compute(of, *more, **named)
            self._guard.run(self._look_at_prompt, logits, of, hidden_states)
            return logits

        with ExitStack() as stack:
            self._guard.run(
                lambda: stack.enter_context(replaced(self._runner.model, "compute_logits", compute_logits))
            )
            return original(hidden_states, *args, **kwargs)

    def _look_at_prompt(self, logits: Tensor | None, of: Tensor, hidden_states: Tensor) -> None:
        offset = offset_in(hidden_states, of)
        if logits is not None and offset is not None:
            self._outlet.observe_prompt(logits, prompt_pieces(offset, len(of), self._spans()))

    def _spans(self) -> list[Span]:
        batch = self._runner.input_batch
        starts = self._runner.query_start_loc.np[: batch.num_reqs + 1].tolist()
        return spans(batch.req_ids[: batch.num_reqs], starts)
