"""What the rows of one step hold, once it has reached the host. Pure; no torch.

    R = logits rows, S = parts that a row was read in, P = planes: 1 for counts alone, or NaNs, +inf, masked
A device writes cells [P, R, S] int32, all of them 0 or more. Here the parts of a row are added up.
Two rows in two parts each, P = 3:
    NaNs [[0, 2], [0, 0]]   +inf [[0, 0], [1, 0]]   masked [[0, 0], [0, 1]]
    -> NaNs [2, 0]          +inf [0, 1]             masked [0, 0]: only one of row 1's parts is all -inf
"""

from array import array
from typing import NamedTuple

INT32_BYTES = 4
CLEAN = b""  # stands for cells that are all 0, of any number of rows
PLANES = 3


class Shape(NamedTuple):
    """How the cells of a step lie in memory."""

    rows: int
    parts: int = 1
    planes: int = 1

    @property
    def cells(self) -> int:
        """How many int32 there are."""
        return self.planes * self.rows * self.parts


class Findings(NamedTuple):
    """The rows of one step, each as bytes of [R] int32; `posinf` and `masked` may be CLEAN."""

    nans: bytes
    posinf: bytes = CLEAN
    masked: bytes = CLEAN  # 1 for a row of nothing but -inf


def add_up(cells: bytes, shape: Shape) -> Findings:
    """Add up the parts of each row; `cells` [P, R, S] are those that landed."""
    if shape.planes == 1 and shape.parts == 1:
        return Findings(cells)
    if is_clean(cells):  # as nearly every step: one comparison
        return Findings(bytes(shape.rows * INT32_BYTES))
    nans, posinf, masked = (_sums(plane, shape.parts) for plane in _planes(cells, shape))
    whole = [int(parts == shape.parts) for parts in masked]
    return Findings(*(array("i", values).tobytes() for values in (nans, posinf, whole)))


def is_clean(counts: bytes) -> bool:
    """Whether no row held a NaN: one comparison, no object for a row. CLEAN is."""
    return counts == bytes(len(counts))


def counts_of(counts: bytes) -> list[int]:
    """Return the counts [R] of a step."""
    return array("i", counts).tolist()


def _planes(cells: bytes, shape: Shape) -> list[bytes]:
    size = shape.rows * shape.parts * INT32_BYTES
    planes = [cells[start : start + size] for start in range(0, len(cells), size)]
    return planes + [bytes(size)] * (PLANES - shape.planes)


def _sums(plane: bytes, parts: int) -> list[int]:
    cells = array("i", plane)
    return [sum(cells[first : first + parts]) for first in range(0, len(cells), parts)]
