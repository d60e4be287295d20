"""How generate() lays out the rows of a forward, for each of its modes. Pure; no torch.

    P = prompts in the call, k = num_return_sequences, b = num_beams
    R = samples in a forward (the first dimension of its logits), T = positions that are read of each

mode                        R       requests    rows of request q
greedy_search, sample       P * k   P * k       q: return q % k of prompt q // k
beam_search, beam_sample    P * b   P           q*b to (q+1)*b - 1: any beam, as they share one search
assisted_generation         1       1           all T positions: the draft that is being verified
an assistant's own draft            0           none, all padding: the model verifies what it proposes
anything else                                   nobody knows: unattributed

P=2, k=2, ids a and b, sampling: rows 0 to 3 belong to a-0, a-1, b-0, b-1.
P=2, b=3, ids a and b, beams: the row ends are [3, 6]; a NaN in row 4 corrupts b.
"""

from dataclasses import dataclass

SAMPLING = frozenset({"greedy_search", "sample"})
BEAMS = frozenset({"beam_search", "beam_sample"})
ASSISTED = "assisted_generation"


class UnknownRowsError(Exception):
    """Whose the rows of a forward are cannot be told; says why, in words for the log."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What one run of a decoding loop does with its rows."""

    mode: str
    returns: int = 1  # k
    beams: int = 1  # b
    is_draft: bool = False  # an assistant's own generate
    in_chunks: bool = False  # the prompt is read in chunks, one forward each

    @property
    def reads_all_positions(self) -> bool:
        """Whether every position of a forward is read, or only the last."""
        return self.mode == ASSISTED

    @property
    def ends_single_rows(self) -> bool:
        """Whether a sequence that is finished keeps its row, as padding."""
        return self.mode in SAMPLING

    @property
    def samples_per_prompt(self) -> int:
        """How many samples of a forward stem from one prompt."""
        return self.beams if self.mode in BEAMS else self.returns

    @property
    def samples_per_request(self) -> int:
        """How many samples of a forward belong to one request."""
        return self.beams if self.mode in BEAMS else 1

    def prompts_of(self, samples: int) -> int:
        """Return how many prompts a forward of so many samples holds: 6 samples, 3 beams -> 2.

        Raises:
            UnknownRowsError: the mode is not known, or the samples are no multiple.
        """
        if self.mode not in SAMPLING | BEAMS | {ASSISTED}:
            raise UnknownRowsError(f"the rows of generate() in mode {self.mode!r} are not known")
        if samples % self.samples_per_prompt:
            raise UnknownRowsError(f"{samples} samples cannot be {self.samples_per_prompt} for each prompt")
        return samples // self.samples_per_prompt

    def requests_of(self, prompt_ids: list[str]) -> list[str]:
        """Return the id of each request: k=2, [a, b] -> [a-0, a-1, b-0, b-1]."""
        if self.mode in BEAMS or self.returns == 1:
            return prompt_ids
        return [f"{prompt}-{child}" for prompt in prompt_ids for child in range(self.returns)]
