"""When the sidecar ends because of NaN, and with which status (--exit-on-nan, for CI).

    waiting --the first corrupted request since the start--> seen --2 scrapes, or 90 s--> due
The two scrapes let Prometheus see the counter move before its target is gone. A signal may end the
sidecar in any state: what was seen decides the status.
"""

import threading
import time
from collections.abc import Callable

STATUS = 3
SCRAPES = 2
SECONDS = 90.0


class ExitOnNan:
    """Told of each poll and each scrape; says when to end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._at_start: int | None = None  # corrupted requests at the first poll
        self._new = 0  # since then
        self._seen_at: float | None = None
        self._scrapes = 0

    def polled(self, corrupted: int) -> None:
        """Note the corrupted requests so far; those of the first poll are from before the start."""
        with self._lock:
            if self._at_start is None:
                self._at_start = corrupted
            self._new = corrupted - self._at_start
            if self._new and self._seen_at is None:
                self._seen_at = self._clock()

    def scraped(self) -> None:
        """Note a scrape; only one that shows the corrupted request counts."""
        with self._lock:
            self._scrapes += self._seen_at is not None

    @property
    def due(self) -> bool:
        """Whether it is time to end."""
        with self._lock:
            seen_at, scrapes = self._seen_at, self._scrapes
        return seen_at is not None and (scrapes >= SCRAPES or self._clock() - seen_at >= SECONDS)

    @property
    def new(self) -> int:
        """Corrupted requests since the start."""
        return self._new

    @property
    def status(self) -> int:
        """Return the exit status, whatever makes the process end."""
        return STATUS if self._new else 0
