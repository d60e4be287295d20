"""Whose the logits rows of a continuous batch are. Pure; no torch.

    R = rows that the engine reads: the batch's requests whose prompt is read to its end, in their order
A batch of four, of which `long` is in the middle of its prompt, and `gone` ended one step ago, while
this step was in flight already:
    requests in the batch    a   long   gone   b
    has_new_token            1    0      1     1
    row                      0    -      1     2          R = 3
    owner                    a           -     b
`long` has no row. Its logits are not made, or are made at a place that stands for no prediction: what
the engine fills unused places with is the first position of the batch once more. A NaN that its chunk
leaves in the cache is seen in the row of its last chunk.
A row is read for nobody (padding) where the engine throws the token away: the request had ended, or was
moved out of the cache, and will make that token again, after this step was begun; or nanwatch itself
throws it away (containment.py).
An id that two clients gave at the same time is one request with two rows.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from nanwatch.attribution import PADDING

# Names of the engine's RequestStatus; in these it uses the token of a step that was in flight.
_TAKES_ITS_TOKEN = frozenset({"PREFILLING", "DECODING"})


class Status(Protocol):
    """The engine's RequestStatus."""

    @property
    def name(self) -> str:
        """PENDING, PREFILLING, DECODING, FINISHED or FAILED."""


class State(Protocol):
    """What is asked of the engine's RequestState."""

    request_id: str

    @property
    def status(self) -> Status:
        """Where the request is in its life."""

    @property
    def generated_tokens(self) -> list[int]:
        """What it was given so far."""


class Scheduled(Protocol):
    """What is asked of the engine's FutureRequestState."""

    state: State
    has_new_token: bool


@dataclass(slots=True)
class BatchRows:
    """The rows of one step: `owners` [R] is each row's index in `ids`, PADDING where it is nobody's."""

    ids: list[str]
    owners: list[int]
    phases: list[str]  # one for each id

    @property
    def row_owner(self) -> list[int] | None:
        """The owners where they say more than "row i is request i"."""
        return None if len(self.ids) == len(self.owners) and PADDING not in self.owners else self.owners

    def add_row(self, request_id: str, phase: str) -> None:
        """Add a row for a request that has none of its own in this step."""
        self.ids.append(request_id)
        self.owners.append(len(self.ids) - 1)
        self.phases.append(phase)


def read_rows(batch: Iterable[Scheduled], thrown_away: Collection[str] = ()) -> BatchRows:
    """Say whose the rows of this batch are, as the engine is about to hand out its tokens.

    `thrown_away` are requests that are not given theirs.
    """
    index: dict[str, int] = {}
    owners: list[int] = []
    phases: list[str] = []
    for scheduled in batch:
        if not scheduled.has_new_token:
            continue
        state = scheduled.state
        if state.status.name not in _TAKES_ITS_TOKEN or state.request_id in thrown_away:
            owners.append(PADDING)
            continue
        owner = index.setdefault(state.request_id, len(index))
        owners.append(owner)
        if owner == len(phases):
            phases.append("decode" if state.generated_tokens else "prefill")
    return BatchRows(list(index), owners, phases)


def row_count(batch: Iterable[Scheduled]) -> int:
    """Return R."""
    return sum(scheduled.has_new_token for scheduled in batch)
