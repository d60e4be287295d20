"""Write as much as one source can keep: `python -m tests.kubernetes.largest_journal FOLDER UID GID`.

Becomes that user first, as the engine's container is. Prints the most bytes that were in use at once,
as the file system counts them; ends with 1 and a line where the journal could not be written or renewed.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from nanwatch.journal.clock import boot_ns, clock_domain
from nanwatch.journal.folder import Folder
from nanwatch.journal.kept import LIVE
from nanwatch.journal.line import CorruptedRequest, Labels, StartLine
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter

LIFE = "4d3b0f0a9c1e4f7f"
LABELS = Labels("llama", "0", "vllm", "0", "vllm-7f9c-x2x", "0", "GPU-8c3b6f1e-5a5d-4c0e-9d0f-2f1f0d6f7a11")
ENDED = 150_000
A_LINE = 4096


class Peak(threading.Thread):
    """Looks at the file system all the time: a file that is being made anew is there for milliseconds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self.over = threading.Event()
        self.in_use = 0

    def run(self) -> None:
        while not self.over.wait(0.001):
            found = os.statvfs(self._folder)
            self.in_use = max(self.in_use, (found.f_blocks - found.f_bfree) * found.f_frsize)


def main() -> None:
    """Let 65,536 requests be corrupted and go on, then 150,000 that end."""
    folder, user, group = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # While this is still root: the interpreter's own files may lie where only root can read.
    start = StartLine(LIFE, os.getpid(), "cuda:0", {}, clock_domain(), boot_ns(), time.time(), Totals())
    os.setgroups([group])
    os.setgid(group)
    os.setuid(user)
    peak = Peak(folder)
    peak.start()
    writer = JournalWriter(Folder(folder, str(group)), LABELS, start)
    totals = Totals()
    for first in range(0, LIVE + ENDED, A_LINE):
        for number in range(first, min(first + A_LINE, LIVE + ENDED)):
            writer.put(_request(number, finished=number >= LIVE))
            totals.corrupted_requests += 1
        writer.commit(totals)
    peak.over.set()
    peak.join()
    (file,) = folder.glob("*.jsonl")
    last = json.loads(file.read_bytes().splitlines()[-1])["totals"]
    if last.get("journal_errors"):
        sys.exit(f"{last['journal_errors']} renewals failed")
    print(peak.in_use)


def _request(number: int, *, finished: bool) -> CorruptedRequest:
    request_id = f"chatcmpl-{number:032x}"
    return CorruptedRequest(
        LIFE, request_id, 0, number, time.time(), boot_ns(), "decode", 1, 151_936, finished=finished
    )


if __name__ == "__main__":
    main()
