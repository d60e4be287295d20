"""The line in the engine's log: who has no Prometheus yet still sees which requests are corrupted."""

import logging
import time
from collections.abc import Callable, Sequence

from .journal.line import CorruptedRequest

EVERY_SECONDS = 10.0
MOST_IDS = 8

logger = logging.getLogger("nanwatch")


class Announcer:
    """Warns at most once in EVERY_SECONDS; what came in between is told with the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spoke_at = float("-inf")
        self._untold = 0

    def announce(self, new: Sequence[CorruptedRequest]) -> None:
        """Warn of new corrupted requests, with their ids."""
        now = self._clock()
        if now - self._spoke_at < EVERY_SECONDS:
            self._untold += len(new)
            return
        ids = ", ".join(repr(request.shown_id) for request in new[:MOST_IDS])
        more = f" and {len(new) - MOST_IDS} more" if len(new) > MOST_IDS else ""
        earlier = f"; {self._untold} other requests since the last warning" if self._untold else ""
        logger.warning(
            "NaN in the logits of %s%s (step %d, phase %s)%s",
            ids,
            more,
            new[0].first_step,
            new[0].phase,
            earlier,
        )
        self._spoke_at, self._untold = now, 0
