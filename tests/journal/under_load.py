"""A process that corrupts thousands of requests a second, until it is killed.

    python -m tests.journal.under_load FOLDER LIFE
After each commit that returned it says so: one byte on its standard output.
"""

import os
import sys
import time
from pathlib import Path

from nanwatch.journal import writer
from nanwatch.journal.folder import Folder
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter
from tests.engine import LABELS, corrupted, start_line

PAUSE_SECONDS = 0.0003  # so that all rounds together stay below what a file keeps


def main(folder: Path, life: str) -> None:
    """Write until killed."""
    writer.RENEW_PAST_BYTES = 10_000  # many renewals
    out = JournalWriter(Folder(folder), LABELS, start_line(life))
    totals = Totals()
    while True:
        out.commit(totals)
        os.write(1, b".")
        time.sleep(PAUSE_SECONDS)
        totals.corrupted_requests += 1
        out.put(corrupted(f"request-{totals.corrupted_requests}", life=life, finished=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
