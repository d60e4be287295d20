"""How generate() lays out the rows of a forward, for each of its modes. Pure; no torch.

    P = prompts in the call, k = num_return_sequences, b = num_beams, K = tokens that were drafted
    R = samples in a forward (the first dimension of its logits), T = positions that are read of each

mode                        R       T       requests    rows of request q
greedy_search, sample       P * k   1       P * k       q: return q % k of prompt q // k
beam_search, beam_sample    P * b   1       P           q*b to (q+1)*b - 1: all beams of one search
assisted_generation         1       K + 1   1           all: the draft that is verified, and what follows
an assistant's own draft            1       0           none, padding: the model verifies what it proposes
a loop that is not          any     all     ?           nobody knows: unattributed
  generate()'s own
any, for one prompt         any             1           all: whatever a row is, it is for this request

P=2, k=2, ids a and b, sampling: rows 0 to 3 belong to a-0, a-1, b-0, b-1.
P=2, b=3, ids a and b, beams: the row ends are [3, 6]; a NaN in row 4 corrupts b.
Music of one prompt, 4 codebooks, guided: 8 rows, all of them that request's; of two prompts: unattributed.
Beams are read to the end of the search, also those that are dropped and those of a prompt that has
found its answer: a NaN among their scores sorts above every number, and would take its place.
"""

from dataclasses import dataclass

SAMPLING = frozenset({"greedy_search", "sample"})
BEAMS = frozenset({"beam_search", "beam_sample"})
ASSISTED = "assisted_generation"
KNOWN = SAMPLING | BEAMS | {ASSISTED}


class UnknownRowsError(Exception):
    """Whose the rows of a forward are cannot be told; says why, in words for the log."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What one run of a decoding loop does with its rows."""

    mode: str
    returns: int = 1  # k
    beams: int = 1  # b
    is_draft: bool = False  # an assistant's own generate
    pads_ended: bool = False  # the tokens of a sequence that has ended are thrown away

    @property
    def is_known(self) -> bool:
        """Whether the loop is one of generate()'s own."""
        return self.mode in KNOWN

    @property
    def verifies(self) -> bool:
        """Whether a forward's last positions are those of a draft."""
        return self.mode == ASSISTED

    @property
    def pads_single_rows(self) -> bool:
        """Whether a sequence that has ended keeps its row, as padding."""
        return self.mode in SAMPLING and self.pads_ended

    @property
    def _has_children(self) -> bool:
        """Whether each returned sequence is a request of its own."""
        return self.mode in SAMPLING and self.returns > 1

    @property
    def samples_per_prompt(self) -> int:
        """How many samples of a forward stem from one prompt."""
        return self.beams if self.mode in BEAMS else self.returns

    def prompts_of(self, samples: int, given: int | None) -> int:
        """Return how many prompts a forward of so many samples holds: 6 samples, 3 beams -> 2.

        Args:
            samples: R.
            given: how many prompts the call was given, None where that cannot be seen.

        Raises:
            UnknownRowsError: the loop is not known, or the samples are no multiple.
        """
        if given == 1 and not self._has_children:
            return 1
        if not self.is_known:
            raise UnknownRowsError(f"the rows of generate() in mode {self.mode!r} are not known")
        if samples % self.samples_per_prompt:
            raise UnknownRowsError(f"{samples} samples cannot be {self.samples_per_prompt} for each prompt")
        return samples // self.samples_per_prompt

    def requests_of(self, prompt_ids: list[str]) -> list[str]:
        """Return the id of each request: k=2, [a, b] -> [a-0, a-1, b-0, b-1]."""
        if not self._has_children:
            return prompt_ids
        return [f"{prompt}-{child}" for prompt in prompt_ids for child in range(self.returns)]
