"""A sidecar that is stopped while thousands of requests are corrupted: `python -m tests.chaos.stall`.

The engine runs in this process at 2,000 corrupted requests a second; after a while the sidecar is
sent SIGSTOP, and SIGCONT `--seconds` later. Printed: what a step costs before and during, the
engine's memory, its file, and whether the counter is exact afterwards.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from nanwatch import NanProbe
from tests.sidecar.running import Sidecar

PER_SECOND = 2000
PER_STEP = 20


@dataclass(frozen=True)
class Stretch:
    """One stretch of load."""

    seconds: float
    requests: int
    observe_microseconds: float
    file_megabytes: float
    resident_megabytes: float


def load(probe: NanProbe, journal: Path, seconds: float, first: int) -> Stretch:
    """Corrupt PER_SECOND requests a second, a step of PER_STEP at a time."""
    bad = torch.ones(PER_STEP, dtype=torch.int32)
    taken, largest, number = [], 0, first
    began = time.monotonic()
    while (number - first) < seconds * PER_SECOND:
        ids = [f"request-{number + i}" for i in range(PER_STEP)]
        start = time.perf_counter_ns()
        probe.observe_counts(bad, ids)
        taken.append(time.perf_counter_ns() - start)
        probe.finish(ids)
        number += PER_STEP
        largest = max(largest, *(file.stat().st_size for file in journal.glob("*.jsonl")))
        time.sleep(max(0.0, began + (number - first) / PER_SECOND - time.monotonic()))
    passed = time.monotonic() - began
    return Stretch(passed, number - first, statistics.median(taken) / 1e3, largest / 1e6, _resident())


def run(seconds: float) -> int:
    """Run the ordeal; 1 if the counter is not exact."""
    with tempfile.TemporaryDirectory(prefix="nanwatch-stall-") as folder:
        journal = Path(folder, "journal")
        os.environ["NANWATCH_JOURNAL"] = str(journal)
        with NanProbe() as probe, Sidecar(journal) as sidecar:
            before = load(probe, journal, 5, 0)
            sidecar.process.send_signal(signal.SIGSTOP)
            during = load(probe, journal, seconds, before.requests)
            sidecar.process.send_signal(signal.SIGCONT)
            probe.flush()
            expected = before.requests + during.requests
            counted = _counted(sidecar, expected)
    ratio = during.observe_microseconds / before.observe_microseconds
    print("| what | before | while the sidecar is stopped |\n|---|---|---|")
    print(f"| seconds | {before.seconds:.1f} | {during.seconds:.1f} |")
    print(f"| corrupted requests | {before.requests} | {during.requests} |")
    print(f"| one observe, ratio | 1 | {ratio:.2f} |")
    print(f"| largest journal file, MB | {before.file_megabytes:.1f} | {during.file_megabytes:.1f} |")
    print(f"| engine resident, MB | {before.resident_megabytes:.0f} | {during.resident_megabytes:.0f} |")
    print(f"\ncounted afterwards: {counted} of {expected}")
    return 0 if counted == expected else 1


def _counted(sidecar: Sidecar, expected: int) -> int:
    deadline = time.monotonic() + 5
    while True:
        lines = sidecar.get("/metrics").text.splitlines()
        shown = [line for line in lines if line.startswith("corrupted_requests_total{")]
        counted = sum(int(float(line.rpartition(" ")[2])) for line in shown)
        if counted == expected or time.monotonic() > deadline:
            return counted
        time.sleep(0.05)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    sys.exit(run(parser.parse_args().seconds))
