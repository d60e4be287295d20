"""One call of generate(): the requests that it serves, and whose each logits row is.

    R = samples in a forward, T = positions, V = vocabulary
Batch of 3 prompts, ids a, b, c; b ends at its second token:
    forward 1 (prefill)   logits [3, 7, V]   row 0 a, row 1 b, row 2 c     of positions only the last is read
    forward 2 (decode)    logits [3, 1, V]   row 0 a, row 1 b, row 2 c
    forward 3 (decode)    logits [3, 1, V]   row 0 a, row 1 padding, row 2 c
The owners of forward 3 are the tensor [0, -1, 2], made on the device from what the stopping criteria
said after forward 2, [False, True, False]: the host never waits to learn who is finished.

A draft of 2 tokens behind a prompt of 5: the first forward returns [1, 7, V], or [1, 3, V]; rows 0 to 2
are the last 3 positions, all of them the request's.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from nanwatch.attribution import PADDING
from nanwatch.engines.guard import Guard
from nanwatch.engines.logits import ends_of, rows_per_sample
from nanwatch.engines.made_up_ids import made_up_ids
from nanwatch.probe import NanProbe

from .prompt_chunks import PromptChunks
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
        self.probe, self._guard, self._named, self._prompts = probe, guard, named, prompts
        self.forwards = 0
        self.requests: list[str] = []
        self._plan = RowPlan("unknown")
        self._samples = 0  # R of the first forward
        self._has_tokens = False  # whether the first tokens were chosen: the prefill is over
        self._owner: Tensor | None = None  # [R] int32, PADDING where a sequence is finished
        self._drafted: int | None = None  # tokens in the draft that the next forward verifies
        self._chunks: PromptChunks | None = None

    def begin(self, plan: RowPlan) -> None:
        """Start a decoding loop. Some models run several in one call, one for each stretch of audio."""
        self._plan = plan
        self._has_tokens = False
        self._owner = self._drafted = self._chunks = None

    def prefill_in(self, chunks: PromptChunks | None) -> None:
        """Note that the prompts are read in these chunks, a forward each."""
        self._chunks = chunks

    def drafted(self, tokens: int) -> None:
        """Note that the next forward verifies a draft of so many tokens."""
        self._drafted = tokens

    def tokens_chosen(self, is_done: Tensor) -> None:
        """Note that a step is over, and the sequences [R] bool that are done with it."""
        self._has_tokens = True
        if self._plan.pads_single_rows and is_done.shape == (self._samples,):
            owner = self._everybody(is_done.device) if self._owner is None else self._owner
            self._owner = owner.masked_fill(is_done, PADDING)

    def observe(self, logits: Tensor) -> None:
        """Count one forward's logits [R, T, V]."""
        self.forwards += 1
        read = self._read_of(logits)
        if self._plan.is_draft:
            self.probe.observe(read, [])
            return
        try:
            requests = self._requests_in(logits.shape[0])
        except UnknownRowsError as why:
            self._guard.say(self._plan.mode, f"{why}: NaN rows are counted as unattributed")
            self.probe.observe(read, None, phase=self._phase)
            return
        self._observe_rows(read, requests, self._owners())

    def finish(self, around: Iterable["GenerateCall"] = ()) -> None:
        """End the requests: the call is over, whether it returned or raised.

        Those of the calls `around` this one live on: it was made to serve them.
        """
        held = {name for call in around if call.probe is self.probe for name in call.requests}
        ended = [name for name in self.requests if name not in held]
        if ended:
            self.probe.finish(ended)

    @property
    def _phase(self) -> str:
        if not self._has_tokens:
            return "prefill"
        return "verify" if self._plan.verifies else "decode"

    def _read_of(self, logits: Tensor) -> Tensor:
        """Return the positions that the loop reads; all where it is nobody's that we know."""
        if not self._plan.is_known or (self._plan.verifies and self._drafted is None):
            return logits
        return logits[:, -1 - (self._drafted or 0) :]

    def _observe_rows(self, read: Tensor, requests: list[str], owner: Tensor | None) -> None:
        """Count [R, V] or [R, T, V]; a sample's rows are all that its part holds."""
        rows = rows_per_sample(read)
        if owner is not None:
            self.probe.observe(read, requests, row_owner=_for_rows(owner, rows, read), phase=self._phase)
        else:
            ends = ends_of(len(requests), rows * read.shape[0] // len(requests))
            self.probe.observe(read, requests, row_ends=ends, phase=self._phase)

    def _requests_in(self, samples: int) -> list[str]:
        """Return the requests of a forward of so many samples.

        Raises:
            UnknownRowsError: they cannot be told from the number of samples.
        """
        if not self.requests:
            self.requests = self._plan.requests_of(
                self._prompt_ids(self._plan.prompts_of(samples, self._prompts))
            )
            self._samples = samples
        if samples != self._samples and self._plan.is_known:
            raise UnknownRowsError(f"{samples} samples in a call that began with {self._samples}")
        return self.requests

    def _prompt_ids(self, prompts: int) -> list[str]:
        if self._prompts not in (None, prompts):
            raise UnknownRowsError(f"{prompts} prompts in a call that was given {self._prompts}")
        if self._named is None:
            return made_up_ids(prompts)
        if len(self._named) != prompts:
            raise UnknownRowsError(f"{len(self._named)} request ids for {prompts} prompts")
        return self._named

    def _owners(self) -> Tensor | None:
        """Return the owners [R] where some sample's row is padding, None where none can be."""
        if self._has_tokens or self._chunks is None:
            return self._owner
        outside = self._chunks.next()
        if outside is None or outside.shape != (self._samples,):
            return None
        return self._everybody(outside.device).masked_fill(outside, PADDING)

    def _everybody(self, device: torch.device) -> Tensor:
        """Return owners [R] int32 with no row finished: 3 beams of 2 requests -> [0, 0, 0, 1, 1, 1]."""
        rows = torch.arange(self._samples, dtype=torch.int32, device=device)
        return rows // (self._samples // len(self.requests))


def _for_rows(owner: Tensor, rows: int, logits: Tensor) -> Tensor:
    """Return owners [R * rows], where the logits are: on a GPU nothing is waited for.

    The owners are on the host only where the caller left its prompts there; then they stay.
    """
    spread = owner if rows == 1 else owner.repeat_interleave(rows)
    return spread if spread.is_cpu else spread.to(logits.device, non_blocking=True)
