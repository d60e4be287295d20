"""What `observe` costs the engine's thread, counting left out: `python -m benchmarks.observe`.

The counts are made already; what is timed is checking, copying and handing over, while the
watcher and the recorder run as they do in an engine. A short pause after each block lets the two
threads catch up, as the model's forward pass would.
    R = logits rows, one request each
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from benchmarks.measure import AtMost, Line, Spread, print_table
from benchmarks.scratch import scratch_journal
from nanwatch import NanProbe

ROUNDS, CALLS = 60, 20
AT_R_1 = AtMost(20)
IN_LISTS = AtMost(1)


def main() -> None:
    """Print the table."""
    with scratch_journal(), NanProbe() as probe:
        print_table("observe apart from counting, on the engine's thread", list(_lines(probe)))


def _lines(probe: NanProbe) -> Iterator[Line]:
    one = _rounds(probe, 1)
    yield Line("R=1, microseconds", Spread.of(observe for observe, _ in one), AT_R_1)
    for rows in (64, 1024):
        many = _rounds(probe, rows)
        yield Line(f"R={rows}, microseconds", Spread.of(observe for observe, _ in many))
        over = Spread.of((wide - narrow) / copy for (narrow, _), (wide, copy) in zip(one, many, strict=True))
        yield Line(f"R={rows}, over R=1, in list(ids)", over, IN_LISTS if rows == 1024 else None)  # noqa: PLR2004
    changed = _rounds(probe, 1024, changing=True)
    yield Line("R=1024, ids that change in every step, microseconds", Spread.of(o for o, _ in changed))


def _rounds(probe: NanProbe, rows: int, *, changing: bool = False) -> list[tuple[float, float]]:
    """Return for each round the median microseconds of one observe and of one list(ids)."""
    counts = torch.zeros(rows, dtype=torch.int32)
    steady = [f"request-{i}" for i in range(rows)]
    other = [*steady[:-1], "request-other"]
    found = []
    for _ in range(ROUNDS):
        batches = [other if changing and call % 2 else steady for call in range(CALLS)]
        observe = _median_of([_timed(partial(probe.observe_counts, counts, ids)) for ids in batches])
        copy = _median_of([_timed(lambda: list(steady)) for _ in batches])
        found.append((observe, copy))
        time.sleep(0.005)
    return found


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def _median_of(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
