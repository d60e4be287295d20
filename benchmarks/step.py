"""How much longer a host-bound engine's step gets: `python -m benchmarks.step`.

The step is 2 ms of Python, the worst neighbour for nanwatch's threads: it never lets go of the
interpreter by itself. With and without nanwatch take turns in one process; both count nothing, so
what shows is observe, the watcher and the recorder together.
    R = logits rows, one request each
"""

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.measure import AtMost, Line, Spread, print_table
from benchmarks.scratch import scratch_journal
from nanwatch import NanProbe

STEP_SECONDS = 0.002
STEPS_PER_BLOCK = 60
ROUNDS = 40
GOALS = {8: AtMost(1.02), 256: AtMost(1.02), 4096: AtMost(1.05)}


def main() -> None:
    """Print the table."""
    work = _work_of(STEP_SECONDS)
    with scratch_journal():
        lines = [line for rows, goal in GOALS.items() for line in _lines(work, rows, goal)]
    print_table("a 2 ms host-bound step with nanwatch / without", lines)


def _lines(work: Callable[[], None], rows: int, goal: AtMost) -> Iterator[Line]:
    counts = torch.zeros(rows, dtype=torch.int32)
    ids = [f"request-{i}" for i in range(rows)]
    with NanProbe() as probe:

        def observed() -> None:
            work()
            probe.observe_counts(counts, ids)

        ratios = []
        for leader in range(ROUNDS):
            order = (work, observed) if leader % 2 else (observed, work)
            seconds = {call: _block(call) for call in order}
            ratios.append(seconds[observed] / seconds[work])
            probe.flush()  # what is still on its way belongs to nobody's next block
    yield Line(f"R={rows}", Spread.of(ratios), goal)


def _block(step: Callable[[], None]) -> float:
    """Return the mean seconds of one step: what the threads take from any step counts."""
    start = time.perf_counter()
    for _ in range(STEPS_PER_BLOCK):
        step()
    return (time.perf_counter() - start) / STEPS_PER_BLOCK


def _work_of(seconds: float) -> Callable[[], None]:
    """Return a fixed amount of Python that takes about `seconds` when nobody disturbs it."""

    def spin(times: int) -> None:
        total = 0
        for number in range(times):
            total += number

    times = 1000
    while (taken := min(_once(spin, times) for _ in range(5))) < seconds:
        times = int(times * max(1.1, min(10, seconds / taken)))
    return lambda: spin(times)


def _once(spin: Callable[[int], None], times: int) -> float:
    start = time.perf_counter()
    spin(times)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
