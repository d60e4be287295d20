"""Rows to requests: who owns a logits row, and so who is charged for its NaNs. Pure; no torch.

    R = logits rows of a step, Q = requests in it, V = vocabulary
Without more, row i belongs to request i. `row_ends` [Q] are cumulative ends, for requests of
several rows; `row_owner` [R] names each row's request. What belongs to nobody is padding.
"""

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

PADDING = -1
_PHASES_OF_REQUESTS = frozenset({"prompt", "prefill", "decode", "verify"})
PHASES = _PHASES_OF_REQUESTS | {"warmup"}


class TensorLike(Protocol):
    """What is asked of a tensor here, so that this module needs no torch."""

    def tolist(self) -> list[int]:
        """Return the values."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How the R rows of one step belong to its requests.

    `request_ids` None: nobody knows, every NaN row is unattributed. An empty list: all padding.
    """

    rows: int
    request_ids: Sequence[str] | None
    row_ends: Sequence[int] | None = None
    row_owner: Sequence[int] | None = None
    phase: str | Sequence[str] = "decode"

    def owner_of(self, row: int) -> int:
        """Return the index of the request that owns `row`, or PADDING.

        row_ends=[4, 8]: rows 0 to 3 are request 0's, 4 to 7 request 1's, row 8 is padding.
        """
        if self.row_owner is not None:
            return self.row_owner[row]
        owner = row if self.row_ends is None else bisect_right(self.row_ends, row)
        return owner if owner < len(self.request_ids or ()) else PADDING

    def owned_rows(self) -> int:
        """Return how many rows are looked at for somebody: all but padding."""
        if self.request_ids is None:
            return self.rows
        if self.row_owner is not None:
            return self.rows - list(self.row_owner).count(PADDING)
        if self.row_ends is not None:
            return self.row_ends[-1] if self.row_ends else 0
        return len(self.request_ids)

    def owned_among(self, marks: bytes) -> int:
        """Return how many of the rows that `marks` [R] int32 marks are not padding; b"": none is marked.

        marks=[1, 0, 2, 1], row_ends=[1, 3]: rows 0 and 2; row 3 is padding.
        """
        if not any(marks):
            return 0
        rows = [row for row, mark in enumerate(array("i", marks)) if mark]
        if self.request_ids is None:
            return len(rows)
        return sum(self.owner_of(row) != PADDING for row in rows)

    def phase_of(self, request: int) -> str:
        """Return the phase that request index `request` is in."""
        return self.phase if isinstance(self.phase, str) else self.phase[request]

    def check(self) -> None:
        """Raise ValueError, with the numbers, where ids, ends, owners and phases do not fit together."""
        _check_phase(self)
        if self.request_ids is None:
            _refuse(
                self.row_ends is not None or self.row_owner is not None,
                "row_ends or row_owner need request_ids, which is None",
            )
            return
        requests = len(self.request_ids)
        if self.row_owner is not None:
            _refuse(
                self.row_ends is not None, "both row_ends and row_owner are given; one of them maps the rows"
            )
            _check_owners(self.row_owner, self.rows, requests)
        elif self.row_ends is not None:
            _check_ends(self.row_ends, self.rows, requests)
        else:
            _refuse(requests > self.rows, f"{requests} request ids for {self.rows} logits rows")


class Charge(NamedTuple):
    """What one request's rows held in one step."""

    request: int  # its index in the step
    rows: int  # with a NaN
    values: int  # NaNs


@dataclass(slots=True)
class Charges:
    """Where the NaNs of one step belong."""

    requests: list[Charge] = field(default_factory=list)  # only those with a NaN, by index
    padding_nan_rows: int = 0
    unattributed_nan_rows: int = 0
    nan_rows: int = 0  # padding left out
    nan_values: int = 0  # padding left out


def attribute(counts: Sequence[int], layout: Layout) -> Charges:
    """Charge the NaNs of each row to the request that owns it.

    `counts` [R] are NaNs per row. counts=[0,0,5,0,1], row_ends=[3,3,4]: request 0 is charged
    1 row and 5 values; row 4 is padding and is charged to nobody.
    """
    charges = Charges()
    rows: dict[int, int] = {}
    values: dict[int, int] = {}
    for row, count in enumerate(counts):
        if count == 0:
            continue
        owner = layout.owner_of(row) if layout.request_ids is not None else None
        if owner == PADDING:
            charges.padding_nan_rows += 1
            continue
        charges.nan_rows += 1
        charges.nan_values += count
        if owner is None:
            charges.unattributed_nan_rows += 1
            continue
        rows[owner] = rows.get(owner, 0) + 1
        values[owner] = values.get(owner, 0) + count
    charges.requests = [Charge(request, rows[request], values[request]) for request in sorted(rows)]
    return charges


def nans_to_dict(
    counts: Sequence[int] | TensorLike,
    request_ids: Sequence[str] | Mapping[str, int],
    row_ends: Sequence[int] | None = None,
) -> dict[str, int]:
    """Return the NaN values of each request, 0 for the clean ones.

    Args:
        counts: NaNs per row [R], a sequence or a tensor (which is waited for).
        request_ids: one id per request, or a mapping id -> row index; a row past the last is 0.
        row_ends: cumulative ends [Q], one per request; only with a sequence of ids.

    Raises:
        ValueError: ids and rows do not fit together.
    """
    values = counts if isinstance(counts, Sequence) else counts.tolist()
    _refuse(any(isinstance(value, list) for value in values[:1]), "counts are one number for each row, [R]")
    if isinstance(request_ids, Mapping):
        _refuse(row_ends is not None, "row_ends go with a sequence of ids, not with a mapping")
        return {name: values[row] if row < len(values) else 0 for name, row in request_ids.items()}
    layout = Layout(len(values), request_ids, row_ends)
    check_ids(request_ids)
    layout.check()
    return charges_to_dict(attribute(values, layout), request_ids)


def charges_to_dict(charges: Charges, request_ids: Sequence[str] | None) -> dict[str, int]:
    """Return NaN values by request id, in the order of the ids."""
    found = dict.fromkeys(request_ids or (), 0)
    for charge in charges.requests:
        found[(request_ids or ())[charge.request]] = charge.values
    return found


def check_ids(request_ids: Sequence[str]) -> None:
    """Raise where an id is no string, or stands twice.

    Raises:
        TypeError: an id is not a string.
        ValueError: an id stands twice.
    """
    check_texts(request_ids)
    if len(set(request_ids)) != len(request_ids):
        twice = sorted({name for name in request_ids if list(request_ids).count(name) > 1})
        raise ValueError(f"request ids are unique in a step, found {len(request_ids)} ids and {twice} twice")


def check_texts(texts: Sequence[str], what: str = "request ids") -> None:
    """Raise TypeError where one of `texts` is no string, or where `texts` itself is one."""
    if isinstance(texts, str):
        raise TypeError(f"{what} are a sequence of strings, found the one string {texts!r}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{what} are strings, found {text!r} of type {type(text).__name__}")


def _check_ends(row_ends: Sequence[int], rows: int, requests: int) -> None:
    _refuse(len(row_ends) != requests, f"{len(row_ends)} row_ends for {requests} request ids")
    _refuse(
        any(b < a for a, b in pairwise((0, *row_ends))), f"row_ends {list(row_ends)} decrease or are below 0"
    )
    last = row_ends[-1] if row_ends else 0
    _refuse(last > rows, f"row_ends end at {last}, past the last of {rows} logits rows")


def _check_owners(row_owner: Sequence[int], rows: int, requests: int) -> None:
    _refuse(len(row_owner) != rows, f"{len(row_owner)} row owners for {rows} logits rows")
    low, high = min(row_owner, default=PADDING), max(row_owner, default=PADDING)
    _refuse(
        low < PADDING or high >= requests,
        f"row owners go from {low} to {high}, expected {PADDING} (padding) to {requests - 1}",
    )


def _check_phase(layout: Layout) -> None:
    if layout.phase in _PHASES_OF_REQUESTS:  # the usual case, in each step of an engine
        return
    phases = {layout.phase} if isinstance(layout.phase, str) else set(layout.phase)
    unknown = sorted(map(repr, phases - PHASES))
    _refuse(bool(unknown), f"phase {', '.join(unknown)} is none of {', '.join(sorted(PHASES))}")
    ids = layout.request_ids or ()
    _refuse("warmup" in phases and len(ids) > 0, f"phase 'warmup' has no requests, found {len(ids)} ids")
    if not isinstance(layout.phase, str):
        _refuse(len(layout.phase) != len(ids), f"{len(layout.phase)} phases for {len(ids)} request ids")


def _refuse(wrong: bool, what: str) -> None:  # noqa: FBT001  reads as "refuse if"
    if wrong:
        raise ValueError(what)
