"""A little engine without torch: one source that writes a real journal."""

import time
from pathlib import Path
from typing import Any, Self

from nanwatch.journal.clock import boot_ns, clock_domain
from nanwatch.journal.folder import Folder
from nanwatch.journal.line import CorruptedRequest, Labels, StartLine
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter

LABELS = Labels(
    model_name="llama",
    engine="0",
    runtime="torch",
    replica="0",
    host="node-1",
    rank="0",
    uuid="GPU-1",
)


def labels(**changed: str) -> Labels:
    """Return the usual labels, some of them changed."""
    names = Labels.__slots__
    return Labels(**{name: changed.get(name, getattr(LABELS, name)) for name in names})


def start_line(life: str = "life-1", **changed: Any) -> StartLine:
    """Return how a life begins, now."""
    usual: dict[str, Any] = {
        "pid": 4711,
        "device": "cuda:0",
        "versions": {"torch": "2.13.0", "nanwatch": "0.1.0"},
        "clock": clock_domain(),
        "boot_ns": boot_ns(),
        "wall_seconds": time.time(),
        "totals": Totals(),
    }
    return StartLine(life=life, **(usual | changed))


def corrupted(request_id: str = "req-1", **changed: Any) -> CorruptedRequest:
    """Return a corrupted request whose first NaN was seen now."""
    usual: dict[str, Any] = {
        "life": "life-1",
        "n": 0,
        "first_step": 1,
        "first_seen_seconds": time.time(),
        "first_seen_boot_ns": boot_ns(),
        "phase": "decode",
        "rows": 1,
        "values": 2,
    }
    return CorruptedRequest(request_id=request_id, **(usual | changed))


class Engine:
    """One source in one life; what it does is written when the call returns."""

    def __init__(
        self,
        folder: Path,
        life: str = "life-1",
        *,
        counting: bool = True,
        fail_fast: bool = False,
        **changed_labels: str,
    ) -> None:
        start = start_line(life, counting=counting, fail_fast=fail_fast)
        self.life = life
        self.totals = Totals()
        self.last_step_seconds = 0.0
        self.writer = JournalWriter(Folder(folder), labels(**changed_labels), start)
        self.write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def serve(self, requests: int = 1) -> None:
        """See healthy requests."""
        self.totals.requests += requests
        self.totals.steps += 1
        self.totals.rows += requests
        self.last_step_seconds = time.time()
        self.write()

    def corrupt(self, *request_ids: str, **changed: Any) -> None:
        """See requests come out as NaN."""
        for request_id in request_ids:
            request = corrupted(request_id, **({"life": self.life} | changed))
            self.writer.put(request)
            self.totals.requests += 1
            self.totals.corrupted_requests += 1
            self.totals.nan_rows += request.rows
            self.totals.nan_values += request.values
        self.serve(0)

    def write(self) -> None:
        """Write one line."""
        self.writer.commit(self.totals, self.last_step_seconds)

    def die(self) -> None:
        """Let the file go, as the end of the process does."""
        self.writer.close()
