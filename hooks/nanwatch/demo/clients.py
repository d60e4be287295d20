"""What the demo's clients ask: batches of prompts, some of them poisoned."""

from collections.abc import Sequence
from dataclasses import dataclass

from .model import POISON, PROMPTS
from .verdict import Planted

BATCH = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one call of `generate()`."""

    ids: list[str]
    prompts: list[str]
    shown: int  # which of them is told about; the poisoned one, where there is one

    @property
    def shown_id(self) -> str:
        """Id of the request that is told about."""
        return self.ids[self.shown]

    def exchange(self, answers: Sequence[str]) -> str:
        """Return what that request's client asked and was sent, in one line."""
        return f"{self.shown_id}  200  {self.prompts[self.shown]!r} -> {answers[self.shown]!r}"


def next_batch(planted: Planted, *, poison: bool) -> Batch:
    """Return the next requests, and note them in `planted`."""
    first = planted.requests
    ids = [f"demo-{number}" for number in range(first + 1, first + BATCH + 1)]
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(first, first + BATCH)]
    shown = len(planted.corrupted_ids) % BATCH  # another row each time
    planted.requests += BATCH
    if poison:
        prompts[shown] += POISON
        planted.corrupted_ids.append(ids[shown])
    return Batch(ids, prompts, shown)
