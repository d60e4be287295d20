"""When the demo does what: a batch, a line of news, a poisoned prompt, the end."""

import math
import select
import time
from collections.abc import Callable
from typing import TextIO

REST_SECONDS = 0.3
NEWS_SECONDS = 2.0
POISON_SECONDS = 5.0
POISON_SECONDS_ONCE = 3.0


class Pace:
    """Poisons when Enter is pressed on a terminal, and by itself after a while.

    Args:
        stdin: where Enter is pressed, if it is a terminal.
        poison_seconds: from one poisoned prompt to the next; inf: none by itself.
        end_seconds: from now to the end; inf: none by itself.
        clock: in seconds.
    """

    def __init__(
        self,
        stdin: TextIO,
        *,
        poison_seconds: float = POISON_SECONDS,
        end_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = stdin if stdin.isatty() else None
        self._clock = clock
        self._seconds = poison_seconds
        self._poison_at = clock() + poison_seconds
        self._news_at = clock()
        self._end_at = clock() + end_seconds

    @property
    def rule(self) -> str:
        """When a prompt is poisoned, in words."""
        by_itself = (
            "no prompt by itself" if math.isinf(self._seconds) else f"one prompt every {self._seconds:g} s"
        )
        return by_itself if self._keys is None else f"{by_itself}, or when you press Enter"

    def poison_due(self) -> bool:
        """Whether to poison a prompt now; the next time is counted from here."""
        due = self._clock() >= self._poison_at
        if due:
            self._poison_at = self._clock() + self._seconds
        return due

    def news_due(self) -> bool:
        """Whether it is time for a line about how it goes."""
        due = self._clock() >= self._news_at
        if due:
            self._news_at = self._clock() + NEWS_SECONDS
        return due

    def over(self) -> bool:
        """Whether it is time to end."""
        return self._clock() >= self._end_at

    def rest(self) -> None:
        """Wait a moment, or until Enter is pressed."""
        if self._keys is None:
            time.sleep(REST_SECONDS)
        elif select.select([self._keys], [], [], REST_SECONDS)[0]:
            self._take_line(self._keys)

    def _take_line(self, keys: TextIO) -> None:
        if keys.readline():
            self._poison_at = self._clock()
        else:
            self._keys = None  # the terminal has closed its end
