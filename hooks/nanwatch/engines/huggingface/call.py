"""One call of generate(): the requests that it serves, and whose each logits row is.

    R = samples in a forward, T = positions, V = vocabulary
Batch of 3 prompts, ids a, b, c; b ends at its second token:
    forward 1 (prefill)   logits [3, 7, V]   row 0 a, row 1 b, row 2 c     of positions only the last is read
    forward 2 (decode)    logits [3, 1, V]   row 0 a, row 1 b, row 2 c
    forward 3 (decode)    logits [3, 1, V]   row 0 a, row 1 padding, row 2 c
The owners of forward 3 are the tensor [0, -1, 2], made on the device from what the stopping criteria
said after forward 2, [False, True, False]: the host never waits to learn who is finished.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nanwatch.attribution import PADDING
from nanwatch.engines.guard import Guard
from nanwatch.engines.logits import ends_of, rows_per_sample
from nanwatch.engines.made_up_ids import made_up_ids
from nanwatch.probe import NanProbe

from .rows import RowPlan, UnknownRowsError


class GenerateCall:
    """What is known of one call while it runs.

    Args:
        probe: what counts.
        guard: what logs.
        named: the ids that the caller gave, one for each prompt, None where there are none.
        prompts: how many prompts the arguments of the call hold, None where that cannot be seen.
    """

    def __init__(self, probe: NanProbe, guard: Guard, named: list[str] | None, prompts: int | None) -> None:
        self._probe, self._guard, self._named, self._prompts = probe, guard, named, prompts
        self.forwards = 0
        self._plan = RowPlan("unknown")
        self._samples = 0  # R of the first forward
        self._requests: list[str] = []
        self._has_tokens = False  # whether the first tokens were chosen: the prefill is over
        self._owner: Tensor | None = None  # [R] int32, PADDING where a sequence is finished

    def begin(self, plan: RowPlan) -> None:
        """Start a decoding loop. Some models run several in one call, one for each stretch of audio."""
        self._plan = plan
        self._has_tokens = False
        self._owner = None

    def tokens_chosen(self, is_done: Tensor) -> None:
        """Note that a step is over, and the sequences [R] bool that are done with it."""
        self._has_tokens = True
        if self._plan.ends_single_rows and is_done.shape == (self._samples,):
            owner = self._everybody(is_done.device) if self._owner is None else self._owner
            self._owner = owner.masked_fill(is_done, PADDING)

    def observe(self, logits: Tensor, arguments: Mapping[str, Any]) -> None:
        """Count one forward's logits [R, T, V]; `arguments` are the forward's own."""
        self.forwards += 1
        read = logits if self._plan.reads_all_positions else logits[:, -1]
        if self._plan.is_draft:
            self._probe.observe(read, [])
            return
        try:
            requests = self._requests_in(logits.shape[0])
        except UnknownRowsError as why:
            self._guard.say(self._plan.mode, f"{why}: NaN rows are counted as unattributed")
            self._probe.observe(read, None, phase=self._phase)
            return
        self._observe_rows(read, requests, self._finished_or_hidden(arguments))

    def finish(self) -> None:
        """End the requests: the call is over, whether it returned or raised."""
        if self._requests:
            self._probe.finish(self._requests)

    @property
    def _phase(self) -> str:
        if not self._has_tokens:
            return "prefill"
        return "verify" if self._plan.reads_all_positions else "decode"

    def _observe_rows(self, read: Tensor, requests: list[str], owner: Tensor | None) -> None:
        """Count [R, V] or [R, T, V]; a sample's rows are all that its part holds."""
        rows = rows_per_sample(read)
        if owner is not None:
            self._probe.observe(read, requests, row_owner=_for_rows(owner, rows, read), phase=self._phase)
        else:
            ends = ends_of(len(requests), rows * self._plan.samples_per_request)
            self._probe.observe(read, requests, row_ends=ends, phase=self._phase)

    def _requests_in(self, samples: int) -> list[str]:
        """Return the requests of a forward of so many samples.

        Raises:
            UnknownRowsError: they cannot be told from the number of samples.
        """
        if not self._requests:
            self._requests = self._plan.requests_of(self._prompt_ids(self._plan.prompts_of(samples)))
            self._samples = samples
        if samples != self._samples:
            raise UnknownRowsError(f"{samples} samples in a call that began with {self._samples}")
        return self._requests

    def _prompt_ids(self, prompts: int) -> list[str]:
        if self._prompts not in (None, prompts):
            raise UnknownRowsError(f"{prompts} prompts in a call that was given {self._prompts}")
        if self._named is None:
            return made_up_ids(prompts)
        if len(self._named) != prompts:
            raise UnknownRowsError(f"{len(self._named)} request ids for {prompts} prompts")
        return self._named

    def _finished_or_hidden(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """Return the owners [R] where some sample's row is padding, None where none can be.

        A prompt that is read in chunks is padded on the left: the last position of a chunk may
        lie before a short prompt begins.
        """
        mask = arguments.get("attention_mask")
        if not self._has_tokens and self._plan.in_chunks and isinstance(mask, Tensor) and mask.dim() == 2:  # noqa: PLR2004
            return self._everybody(mask.device).masked_fill(mask[:, -1] == 0, PADDING)
        return self._owner

    def _everybody(self, device: torch.device) -> Tensor:
        """Return owners [R] int32 with no row finished: each sample is a request."""
        return torch.arange(self._samples, dtype=torch.int32, device=device)


def _for_rows(owner: Tensor, rows: int, logits: Tensor) -> Tensor:
    """Return owners [R * rows], where the logits are: on a GPU nothing is waited for.

    The owners are on the host only where the caller left its prompts there; then they stay.
    """
    spread = owner if rows == 1 else owner.repeat_interleave(rows)
    return spread if spread.is_cpu else spread.to(logits.device, non_blocking=True)
