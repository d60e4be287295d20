"""Many sources that write their journals at once: `python -m benchmarks.writers`, one process, one thread.

A process for each of 64 sources, with its engine and its threads, is more than two cores carry: what would be
measured is their scheduling. Here each is a journal's writer alone, with a rank of its own, which writes ten
lines a second with a corrupted request in each, in turn with the others, until `--seconds` are over.
"""

import argparse
import time

from nanwatch.journal.clock import boot_ns, clock_domain
from nanwatch.journal.folder import Folder, default_folder
from nanwatch.journal.line import CorruptedRequest, Labels, StartLine
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter
from nanwatch.settings import Settings

LINES_A_SECOND = 10
LIFE = "a-life"


class Source:
    """One source: its writer, and what it has counted."""

    def __init__(self, folder: Folder, rank: int) -> None:
        labels = Labels("model", "0", "torch", "0", "host", str(rank), f"GPU-{rank}")
        start = StartLine(LIFE, 1, "cuda", {}, clock_domain(), boot_ns(), time.time(), Totals())
        self.writer, self._totals = JournalWriter(folder, labels, start), Totals()
        self.writer.commit(self._totals)

    def corrupt_one(self) -> None:
        """Count ten steps of eight requests, of which one was corrupted, and write a line."""
        totals = self._totals
        totals.steps, totals.rows, totals.requests = totals.steps + 10, totals.rows + 80, totals.requests + 8
        totals.nan_rows, totals.corrupted_requests = totals.nan_rows + 1, totals.corrupted_requests + 1
        number = totals.corrupted_requests
        seen = (totals.steps, time.time(), boot_ns())
        self.writer.put(CorruptedRequest(LIFE, f"request-{number}", 0, *seen, "decode", 1, 5, finished=True))
        self.writer.commit(totals, time.time())


def main() -> None:
    """Write until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    folder = Folder(Settings.from_environment().journal or default_folder(writing=True))
    sources = [Source(folder, rank) for rank in range(chosen.sources)]
    print("ready", flush=True)
    began, lines = time.monotonic(), 0
    while time.monotonic() - began < chosen.seconds:
        sources[lines % len(sources)].corrupt_one()
        lines += 1
        due = began + lines / (LINES_A_SECOND * len(sources))
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
