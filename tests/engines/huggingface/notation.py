"""A way to write down whose each row of each forward is, worked out by hand, and to try every one of them.

    "prefill ...a ...b"   a forward in the phase prefill: two samples of four positions each; the last
                          position of the first is a's, the last of the second is b's, the others are not read
    "decode a - c"        three samples of one position; the second is padding

a letter    the request that is charged
-           padding: counted as a padding row, nobody is corrupted
.           not read: a NaN there is nobody's, and is not counted at all
?           nobody knows: counted as unattributed

`Planted` writes one NaN into one position of the raw logits at one forward, and checks that the model
returned what the notation says. Sequences go on with LIKED, unless `ends` says that a row ends there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from tests.engines.huggingface.tiny import EOS, LIKED, POISON

NOBODY = "-.?"


class Cell(NamedTuple):
    """One position of one row of one forward, forwards counted from 1, and whose it is."""

    forward: int
    row: int
    position: int
    owner: str
    phase: str


def cells_of(forwards: tuple[str, ...]) -> list[Cell]:
    """Return every cell of a table: ("prefill .a", "decode a") -> 3 cells."""
    return [
        Cell(number, row, position, owner, forward.split()[0])
        for number, forward in enumerate(forwards, start=1)
        for row, positions in enumerate(forward.split()[1:])
        for position, owner in enumerate(positions)
    ]


def count(forwards: tuple[str, ...], owners: str) -> int:
    """Return how many cells belong to one of `owners`."""
    return sum(cell.owner in owners for cell in cells_of(forwards))


@dataclass
class Planted:
    """What happens to the raw logits of a run: at most one NaN, at `cell`."""

    forwards: tuple[str, ...]
    cell: Cell | None = None
    ends: frozenset[tuple[int, int]] = frozenset()  # (forward, row)
    shapes: list[list[int]] = field(default_factory=list)  # what the head gave: samples, positions

    @contextmanager
    def in_head_of(self, model: Any) -> Iterator[None]:
        """Change what the model's head gives, before the model returns it."""
        hook = model.get_output_embeddings().register_forward_hook(self._write)
        try:
            yield
        finally:
            hook.remove()

    def check_shapes(self) -> None:
        """Fail where a clean run's forwards are not those that were written down."""
        assert self.shapes == [
            [len(rows), len(rows[0])] for rows in (forward.split()[1:] for forward in self.forwards)
        ]

    def _write(self, _module: Any, _args: Any, logits: Tensor) -> Tensor:
        self.shapes.append(list(logits.shape[:2]))
        forward = len(self.shapes)
        logits[..., [EOS, POISON]] = -100.0
        logits[..., LIKED] += 10.0
        for row in range(logits.shape[0]):
            if (forward, row) in self.ends:
                logits[row, -1, EOS] = 100.0
        if self.cell is not None and self.cell.forward == forward:
            logits[self.cell.row, self.cell.position, 0] = float("nan")
        return logits
