"""What a caller said about a step, checked and copied: its lists may change as soon as `observe` returns."""

import operator
from collections.abc import Sequence

from torch import Tensor

from .attribution import Layout, check_ids

Rows = Sequence[int]
Phase = str | Sequence[str]


class Layouts:
    """Makes the layout of each step; remembers the ids of the last one, since decoding repeats them."""

    def __init__(self) -> None:
        self._ids: Sequence[str] = ()  # those of the last step, checked, our own copy
        self._last: Layout | None = None  # of the last step whose row i is request i

    def layout(
        self,
        rows: int,
        request_ids: Sequence[str] | None,
        row_ends: Rows | Tensor | None,
        row_owner: Rows | Tensor | None,
        phase: Phase,
    ) -> Layout:
        """Return how `rows` logits rows belong to requests, without owners that only a device knows.

        Raises:
            ValueError, TypeError: the arguments do not fit together.
        """
        last = self._last  # read once: another thread may observe with this probe too
        is_plain = row_ends is None and row_owner is None
        if (  # a step that repeats the last one at the first look, as nearly every step of an engine does
            is_plain
            and last is not None
            and last.phase is phase
            and last.rows == rows
            and isinstance(request_ids, list)
            and request_ids == last.request_ids
        ):
            return last
        ids = None if request_ids is None else self._own_copy(request_ids)
        phase = phase if isinstance(phase, str) else tuple(phase)
        if (owners := on_device(row_owner)) is not None:  # checked when they have landed
            if owners.numel() != rows:
                raise ValueError(f"{owners.numel()} row owners for {rows} logits rows")
            return Layout(rows, ids, phase=phase)
        if is_plain and last is not None and _says(last, rows, ids, phase):
            return last
        layout = Layout(
            rows=rows,
            request_ids=ids,
            row_ends=_as_integers(row_ends, "row_ends"),
            row_owner=_as_integers(row_owner, "row_owner"),
            phase=phase,
        )
        layout.check()
        if is_plain:
            self._last = layout
        return layout

    def _own_copy(self, request_ids: Sequence[str]) -> Sequence[str]:
        """Return a checked copy; where the ids are those of the last step, that step's copy.

        Comparing with the same strings costs about what copying would, so the look for ids that
        stand twice is paid only when the batch changes.
        """
        known = self._ids  # read once: another thread may observe with this probe too
        if not isinstance(request_ids, list | tuple | str):
            request_ids = list(request_ids)
        if request_ids == known:
            return known
        check_ids(request_ids)
        self._ids = ids = request_ids if isinstance(request_ids, tuple) else list(request_ids)
        return ids


def check_positions(what: str, shape: Sequence[int], layout: Layout) -> None:
    """Refuse logits [B, T, V], or counts [B, T], of which nobody said whose the rows are.

    Were the first rows taken for the requests, as in a padded [R, V], a NaN in another row would be padding.

    Raises:
        ValueError: there are ids, but not one for each row, and neither ends nor owners.
    """
    ids = layout.request_ids
    if ids and len(ids) != layout.rows and layout.row_ends is None and layout.row_owner is None:
        raise ValueError(
            f"{what} {list(shape)} are {layout.rows} rows for {len(ids)} request ids: say with row_ends or "
            f"row_owner whose they are, or give the one position of each that counts, as {what}[:, -1]"
        )


def _says(layout: Layout, rows: int, ids: Sequence[str] | None, phase: Phase) -> bool:
    """Whether a layout that was checked is that of these arguments too; `ids` are our own copy."""
    return layout.rows == rows and layout.request_ids is ids and layout.phase == phase


def on_device(row_owner: Rows | Tensor | None) -> Tensor | None:
    """Return the owners where they are on a device, from where reading them would wait."""
    if isinstance(row_owner, Tensor) and row_owner.device.type != "cpu":
        return row_owner
    return None


def _as_integers(rows: Rows | Tensor | None, name: str) -> list[int] | None:
    """Return plain integers, whatever kind they came in: only those are written to the journal.

    Raises:
        TypeError: one is no integer, or they are on a device, where reading them would wait.
    """
    if rows is None:
        return None
    if isinstance(rows, Tensor):
        if rows.device.type != "cpu":
            raise TypeError(f"{name} are wanted on the host, found a tensor on {rows.device}")
        rows = rows.reshape(-1).tolist()
    try:
        return list(map(operator.index, rows))
    except TypeError as error:
        raise TypeError(f"{name} are integers: {error}") from None
