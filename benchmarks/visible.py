"""From observe to /metrics: `python -m benchmarks.visible`.

One corrupted request at a time, planted in a probe of this process; a real sidecar in a process of
its own is scraped over HTTP without a pause until its counter has moved. What is timed is observe's
call to the end of the first scrape that shows the request.
"""

import statistics
import time

import torch

from benchmarks.measure import AtMost, Line, Spread, print_table
from benchmarks.scratch import scratch_journal
from benchmarks.sidecar_process import SidecarProcess, corrupted_in
from nanwatch import NanProbe

REQUESTS = 300
GOAL_MILLISECONDS = AtMost(20)


def main() -> None:
    """Print the table."""
    with scratch_journal() as journal, NanProbe() as probe, SidecarProcess(journal) as sidecar:
        delays = [_milliseconds_until_visible(probe, sidecar, n) for n in range(1, REQUESTS + 1)]
        scrapes = [sidecar.scrape()[0] for _ in range(100)]
    cut = statistics.quantiles(delays, n=100)
    lines = [
        Line("p50", Spread(cut[49], *_around(delays)), GOAL_MILLISECONDS),
        Line("p99", Spread(cut[98], cut[94], max(delays)), GOAL_MILLISECONDS),
        Line("one scrape by itself", Spread.of(scrapes)),
    ]
    print_table("observe to visible on /metrics, milliseconds (p99: p95 to the longest)", lines)


def _around(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def _milliseconds_until_visible(probe: NanProbe, sidecar: SidecarProcess, n: int) -> float:
    bad = torch.full((1, 32), float("nan"))
    start = time.perf_counter()
    probe.observe(bad, [f"request-{n}"])
    while corrupted_in(sidecar.scrape()[1]) < n:
        pass
    taken = time.perf_counter() - start
    time.sleep(0.01)
    return taken * 1e3


if __name__ == "__main__":
    main()
