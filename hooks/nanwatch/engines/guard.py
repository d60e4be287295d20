"""What stands between an adapter's mistakes and the engine: a line in the log instead of an exception.

    the caller's fault (two ids for three samples)   one error line a minute for each kind
    our fault                                        one error with its traceback for each kind,
                                                     and a dropped step each time
Only NanLogitsError gets out: it is what fail-fast was asked for.
"""

import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from nanwatch.failfast import NanLogitsError
from nanwatch.probe import NanProbe

SECONDS_BETWEEN = 60.0
DROP_REASON = "error"

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("nanwatch")


class Guard:
    """The guard of one adapter, which is called `name` in the log."""

    def __init__(self, name: str, probe: NanProbe, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._probe, self._clock = name, probe, clock
        self._said_at: dict[str, float] = {}
        self._failed: set[str] = set()

    def run(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what `action` returns, or None where it failed."""
        try:
            return action(*args, **kwargs)
        except NanLogitsError:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the engine is not to notice
            self.failed(error)
            return None

    def say(self, kind: str, message: str) -> None:
        """Log one line, unless this kind was said less than a minute ago."""
        now = self._clock()
        if now - self._said_at.get(kind, float("-inf")) >= SECONDS_BETWEEN:
            self._said_at[kind] = now
            logger.error("%s: %s", self._name, message)

    def failed(self, error: Exception) -> None:
        """Count and log an exception: `run` does so, and who catches by itself where each call counts."""
        self._probe.drop(DROP_REASON)
        kind = type(error).__name__
        if kind in self._failed:
            return
        self._failed.add(kind)
        logger.error(
            "%s: a step was not looked at, the engine goes on; the next ones like it are only counted: %s",
            self._name,
            error,
            exc_info=error,
        )
