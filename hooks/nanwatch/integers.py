"""Rows as plain integers, whatever kind they came in: only those are written to the journal."""

import operator
from collections.abc import Sequence

from torch import Tensor

Rows = Sequence[int]


def as_integers(rows: Rows | Tensor | None, name: str) -> list[int] | None:
    """Return plain integers; None stays None.

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
