"""What the sidecar takes to start and to be there: `python -m benchmarks.sidecar`.

Ready is the first 200 of /readyz over a journal with one source, from the start of the process; the
yardstick is a process that only imports what the sidecar imports, in turns with it. A megabyte is 10^6 bytes.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.measure import AtMost, Line, Spread, print_table
from benchmarks.scratch import scratch_journal
from benchmarks.sidecar_process import IMPORTS, SidecarProcess
from nanwatch import NanProbe

ROUNDS = 5
LISTED = 10_000
PER_STEP = 500
READY_IN_IMPORTS = AtMost(2)
RESIDENT_MEGABYTES = AtMost(60)


def main() -> None:
    """Print the table."""
    with scratch_journal() as journal, NanProbe() as probe:
        lines = [*_start(journal), _resident(journal, "one source, nothing listed")]
        _corrupt(probe, 2 * LISTED)
        lines.append(_resident(journal, f"{LISTED} requests listed, and asked for"))
    print_table("the sidecar", lines)


def _start(journal: Path) -> Iterator[Line]:
    pairs = []
    for _ in range(ROUNDS):
        imports = _seconds_of_imports()
        with SidecarProcess(journal) as sidecar:
            pairs.append((sidecar.seconds_until_ready(), imports))
    yield Line("ready, milliseconds", Spread.of(ready * 1e3 for ready, _ in pairs))
    yield Line("ready / its imports alone", Spread.of(a / b for a, b in pairs), READY_IN_IMPORTS)


def _seconds_of_imports() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)  # noqa: S603  our own command
    return time.perf_counter() - start


def _corrupt(probe: NanProbe, requests: int) -> None:
    bad = torch.ones(PER_STEP, dtype=torch.int32)
    for first in range(0, requests, PER_STEP):
        ids = [f"chatcmpl-{first + i:032d}" for i in range(PER_STEP)]
        probe.observe_counts(bad, ids)
        probe.finish(ids)
        probe.flush()


def _resident(journal: Path, what: str) -> Line:
    """Weigh a sidecar after it answered everything that it is asked in its life."""
    with SidecarProcess(journal) as sidecar:
        sidecar.seconds_until_ready()
        taken = []
        for _ in range(20):
            sidecar.scrape()
            sidecar.get(f"/v1/corrupted-requests?limit={LISTED}")
            taken.append(sidecar.resident_megabytes())
    spread = Spread(statistics.median(taken), min(taken), max(taken))
    return Line(f"resident, {what}, MB (least to most)", spread, RESIDENT_MEGABYTES)


if __name__ == "__main__":
    main()
