"""What is counted: cells that only grow, in every line of a journal file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

DELAY_BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
DROP_REASONS = ("slots", "rows", "lost", "backlog", "capture", "error")  # why a step was not looked at
CONTAINMENT = ("aborted_requests", "kv_poisoned_blocks", "quarantined_blocks", "released_blocks")


@dataclass(slots=True)
class Totals:
    """What a file has counted over all its lives; every cell only grows."""

    steps: int = 0
    rows: int = 0  # logits rows looked at, padding left out
    nan_rows: int = 0
    nan_values: int = 0
    padding_nan_rows: int = 0
    unattributed_nan_rows: int = 0
    posinf_rows: int = 0  # rows with +inf, padding left out; they corrupt nothing
    fully_masked_rows: int = 0  # rows of nothing but -inf, padding left out; they corrupt nothing
    requests: int = 0
    corrupted_requests: int = 0
    fail_fast_trips: int = 0
    journal_errors: int = 0
    queue_full: int = 0  # per-request dicts that the caller's own queue did not take
    dropped_entries: int = 0  # corrupted requests, new or changed, let go before a line held them
    aborted_requests: int = 0  # ended because of their NaN, so that the others run on
    kv_poisoned_blocks: int = 0  # KV blocks in which NaN was found, each time it was
    quarantined_blocks: int = 0  # KV blocks that were held back from reuse, ever
    released_blocks: int = 0  # ... and given back; what is held back now is the difference, of one life
    dropped_steps: dict[str, int] = field(default_factory=dict)  # by reason
    delay_counts: dict[str, int] = field(default_factory=dict)  # by upper bound in seconds, not cumulative
    delay_sum_seconds: float = 0.0

    def raise_to(self, other: "Totals") -> None:
        """Take the greater of each cell, so that no total ever falls."""
        for name in SCALARS:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name in TABLES:
            mine = getattr(self, name)
            for key, value in getattr(other, name).items():
                mine[key] = max(mine.get(key, 0), value)

    def plus(self, other: "Totals") -> "Totals":
        """Return the sum of both, cell by cell."""
        total = self.copy()
        for name in SCALARS:
            setattr(total, name, getattr(self, name) + getattr(other, name))
        for name in TABLES:
            table = getattr(total, name)
            for key, value in getattr(other, name).items():
                table[key] = table.get(key, 0) + value
        return total

    def copy(self) -> "Totals":
        """Return totals that share nothing with these."""
        return replace(self, dropped_steps=dict(self.dropped_steps), delay_counts=dict(self.delay_counts))

    def add_delay(self, seconds: float) -> None:
        """Put one observe-to-written delay into its bucket."""
        bound = next((f"{b:g}" for b in DELAY_BOUNDS_SECONDS if seconds <= b), "+Inf")
        self.delay_counts[bound] = self.delay_counts.get(bound, 0) + 1
        self.delay_sum_seconds += seconds


def contained_cells(cells: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return those of CONTAINMENT that grew, each with how much it grew by.

    Raises:
        ValueError: another cell, or one that would fall.
    """
    if any(cell not in CONTAINMENT or by < 0 for cell, by in cells.items()):
        raise ValueError(
            f"what is done about a NaN is {', '.join(CONTAINMENT)}, each 0 or more: {dict(cells)}"
        )
    return tuple((cell, by) for cell, by in cells.items() if by)


TABLES = ("dropped_steps", "delay_counts")
SCALARS = tuple(f.name for f in fields(Totals) if f.name not in TABLES)
COUNTS = tuple(name for name in SCALARS if name != "delay_sum_seconds")
