"""Many sources in one process, since 64 processes are too many for two cores: `python -m benchmarks.writers`.

Each is a probe with a rank of its own: a step every 20 ms, a corrupted request in every tenth of them.
"""

import argparse
import logging
import time

import torch

from nanwatch import NanProbe

ROWS = 8
STEP_SECONDS = 0.02
CORRUPTED_EVERY = 10


def main() -> None:
    """Write until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="the rank of the first of them")
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    ranks = range(chosen.first, chosen.first + chosen.sources)
    probes = [NanProbe(rank=str(rank)) for rank in ranks]
    logging.getLogger("nanwatch").setLevel(logging.CRITICAL)  # a line for each corrupted request is no figure
    print("ready", flush=True)
    write(probes, chosen.seconds)
    for probe in probes:
        probe.close()


def write(probes: list[NanProbe], seconds: float) -> None:
    """Let every probe observe a step each STEP_SECONDS."""
    clean, bad = torch.zeros(ROWS, dtype=torch.int32), torch.zeros(ROWS, dtype=torch.int32)
    bad[3] = 5
    began, step = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        ids = [f"request-{step}-{row}" for row in range(ROWS)]
        for place, probe in enumerate(probes):
            corrupted = (step + place) % CORRUPTED_EVERY == 0
            probe.observe_counts(bad if corrupted else clean, ids)
            probe.finish(ids)
        step += 1
        time.sleep(max(0.0, began + step * STEP_SECONDS - time.monotonic()))


if __name__ == "__main__":
    main()
