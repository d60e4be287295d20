"""Whose a logits row is, in vLLM's batches. Pure: no vLLM, and no tensor but those passed through.

    R = logits rows, Q = requests of the batch
Without drafts each request has one row, also one whose prompt is prefilled in part: its sample is
thrown away, its row is counted. With drafts [2, 0, 1] requests have 3, 1 and 2 rows, the drafts'
and one more: row ends [3, 4, 6], phases verify, decode, verify.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

# What vLLM calls the requests of its own warm-up and of dummy batches.
_WARM_UP = re.compile(r"_warmup_\d+_|_v2_mixed_warmup.*|req_\d+_[0-9a-f]{16,}")
_WARM_UP_BEGINS = ("_", "req_")  # asked in each step: costs a fraction of the whole pattern


class Rows(NamedTuple):
    """What `NanProbe.observe` is told beside the logits."""

    request_ids: Sequence[str]
    row_ends: Sequence[int] | None = None
    row_owner: Any = None  # [R] int32 on the logits' device, where only the device knows
    phase: str | tuple[str, ...] = "decode"


class Span(NamedTuple):
    """The hidden states of one request in a step: rows `start` to `end` - 1 of the batch's tokens."""

    request_id: str
    start: int
    end: int


def is_warm_up(request_ids: Sequence[str]) -> bool:
    """Whether a batch is one that vLLM made up; those are never mixed with requests."""
    if not request_ids or not request_ids[0].startswith(_WARM_UP_BEGINS):
        return False
    return _WARM_UP.fullmatch(request_ids[0]) is not None


def sampled_rows(
    request_ids: Sequence[str], drafts: Sequence[int] | None, prefilling: Sequence[bool] | None
) -> Rows:
    """Lay out the rows that are sampled from; `prefilling` is None where no request is."""
    if drafts is None:
        return Rows(request_ids, phase=phases([0] * len(request_ids), prefilling))
    ends = list(accumulate(int(number) + 1 for number in drafts))
    return Rows(request_ids, row_ends=ends, phase=phases(drafts, prefilling))


def phases(drafts: Sequence[int], prefilling: Sequence[bool] | None) -> str | tuple[str, ...]:
    """Name the phase of each request; one word where all only decode, as in nearly every step."""
    if prefilling is None and not any(drafts):
        return "decode"
    waiting = prefilling if prefilling is not None else [False] * len(drafts)
    return tuple(
        "prefill" if waits else "verify" if number else "decode"
        for number, waits in zip(drafts, waiting, strict=True)
    )


def spans(request_ids: Sequence[str], starts: Sequence[int]) -> list[Span]:
    """Pair requests with their tokens: ids [a, b], starts [0, 5, 6] -> a has 0 to 4, b has 5."""
    return [Span(name, starts[i], starts[i + 1]) for i, name in enumerate(request_ids)]


def prompt_pieces(offset: int, rows: int, whose: Sequence[Span]) -> list[Span]:
    """Cut `rows` rows of prompt logits, made from the hidden states at `offset`, by their requests.

    offset=4, rows=4 over a: 0 to 4, b: 5, c: 6 to 20 -> a: row 0, b: row 1, c: rows 2 and 3; a row
    in nobody's span is left out.
    """
    first = max(0, bisect_right([span.start for span in whose], offset) - 1)
    pieces = []
    for span in whose[first:]:
        if span.start >= offset + rows:
            break
        start, end = max(span.start, offset), min(span.end, offset + rows)
        if start < end:
            pieces.append(Span(span.request_id, start - offset, end - offset))
    return pieces
