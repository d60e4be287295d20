"""Whose the logits rows of a continuous batch are.

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
moved out of the cache, and will make that token again, after this step was begun.
An id that two clients gave at the same time is one request with two rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nanwatch.attribution import PADDING


@dataclass(slots=True)
class BatchRows:
    """The rows of one step.

    Attributes:
        rows: R.
        ids: the requests, each once.
        row_owner: [R] each row's index in `ids`, PADDING where it is nobody's; None: row i is request i.
        phase: decode or prefill; or one for each id: its first token ends its prefill.
    """

    rows: int
    ids: list[str]
    row_owner: list[int] | None
    phase: str | list[str]


def read_rows(batch: Sequence[Any]) -> BatchRows:
    """Say whose the rows of this batch are, as the engine is about to hand out its tokens.

    `batch` holds the engine's FutureRequestStates. Nearly every step is one row each for requests that go
    on, and is read in one go.
    """
    taking = _taking()
    ids: list[str] = []
    has_first_token = False
    for scheduled in batch:
        if scheduled.has_new_token:
            state = scheduled.state
            if state.status not in taking:
                return _read_one_by_one(batch)
            ids.append(state.request_id)
            has_first_token |= not state.generated_tokens
    if has_first_token or len(set(ids)) != len(ids):
        return _read_one_by_one(batch)
    return BatchRows(len(ids), ids, None, "decode")


def row_count(batch: Iterable[Any]) -> int:
    """Return R."""
    return sum(scheduled.has_new_token for scheduled in batch)


def _read_one_by_one(batch: Iterable[Any]) -> BatchRows:
    taking = _taking()
    index: dict[str, int] = {}
    owners: list[int] = []
    phases: list[str] = []
    for state in (scheduled.state for scheduled in batch if scheduled.has_new_token):
        if state.status not in taking:
            owners.append(PADDING)
            continue
        owner = index.setdefault(state.request_id, len(index))
        owners.append(owner)
        if owner == len(phases):
            phases.append("decode" if state.generated_tokens else "prefill")
    return BatchRows(len(owners), list(index), owners, phases)


@cache
def _taking() -> tuple[Any, ...]:
    """Return the states in which the engine takes the token of a step that was in flight.

    In the others it throws it away. Imported late: a version without them still has generate().
    """
    from transformers.generation.continuous_batching.requests import RequestStatus

    return (RequestStatus.DECODING, RequestStatus.PREFILLING)
