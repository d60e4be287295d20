"""(c) What `observe` takes of the host: the time until it returns, with the GPU's queue never full.

R = rows, one request each
"""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.cuda.card import Device
from benchmarks.measure import AtMost, Line, Spread
from nanwatch import NanProbe

ROWS = (1, 8, 256, 4096)
COLUMNS = 151_936
ROUNDS, CALLS = 30, 20
GOAL = AtMost(20)
GOAL_BYTES = AtMost(0)


def lines(
    card: Device, rows: tuple[int, ...] = ROWS, columns: int = COLUMNS, rounds: int = ROUNDS
) -> Iterator[Line]:
    """Measure observe and, beside it, the bare eager line that counts and copies nothing."""
    with NanProbe(device=card.where) as probe:
        for count in rows:
            logits = torch.randn(count, columns, device=card.where, dtype=torch.bfloat16)
            ids = [f"request-{i}" for i in range(count)]
            observe = _host(card, lambda: probe.observe(logits, ids), rounds)  # noqa: B023  called at once
            plain = _host(card, lambda: logits.isnan().sum(-1), rounds)  # noqa: B023
            yield Line(f"R={count} observe, microseconds", observe, GOAL)
            yield Line(f"R={count} isnan().sum(-1) alone, microseconds", plain)


def allocations(card: Device, rows: int = 256, columns: int = COLUMNS, steps: int = 200) -> Iterator[Line]:
    """Count what is allocated after the warm-up, on the device and pinned."""
    logits = torch.randn(rows, columns, device=card.where, dtype=torch.bfloat16)
    ids = [f"request-{i}" for i in range(rows)]
    with NanProbe(device=card.where) as probe:
        for _ in range(10):
            probe.observe(logits, ids)
        probe.flush()
        before = _allocated()
        for step in range(steps):
            probe.observe(logits, ids)
            if step % CALLS == 0:
                probe.flush()
        new = [after - earlier for after, earlier in zip(_allocated(), before, strict=True)]
    for what, count in zip(("device allocations", "pinned allocations"), new, strict=True):
        yield Line(f"{what} in {steps} steps after warm-up", Spread(count, count, count), GOAL_BYTES)


def _allocated() -> tuple[int, int]:
    """Return how often the two caching allocators were asked for memory so far."""
    if not torch.cuda.is_available():
        return (0, 0)
    pinned = torch.cuda.host_memory_stats().get("allocation.allocated", 0)
    return int(torch.cuda.memory_stats()["allocation.all.allocated"]), int(pinned)


def _host(card: Device, call: Callable[[], object], rounds: int) -> Spread:
    """Return the microseconds of a call: the median of each round; the GPU is idle before each."""
    call()
    card.synchronize()
    found = []
    for _ in range(rounds):
        taken = []
        for _ in range(CALLS):
            start = time.perf_counter_ns()
            call()
            taken.append((time.perf_counter_ns() - start) / 1e3)
        found.append(statistics.median(taken))
        card.synchronize()
        time.sleep(0.01)  # the watcher gives the slots back
    return Spread.of(found)
