"""Where a process begins and ends: forks, and the interpreter's exit.

A fork copies memory but no threads: a child forgets what its parent's probes had running. At
exit every probe writes what has landed, within EXIT_SECONDS for all of them together.
"""

import atexit
import logging
import os
import sys
import time
from typing import Protocol

EXIT_SECONDS = 2.0


class Living(Protocol):
    """What a probe does at the ends of its process."""

    def close(self, timeout: float) -> None:
        """Write what has landed and end."""

    def forget_parent(self) -> None:
        """Drop what a fork left behind."""


logger = logging.getLogger("nanwatch")

_living: set[Living] = set()  # held until closed: what an abandoned probe observed is written too
_closes_at_exit_of: set[int] = set()  # pids


def remember(probe: Living) -> None:
    """Close this probe at exit, and tell it of forks."""
    _living.add(probe)


def forget(probe: Living) -> None:
    """This probe was closed."""
    _living.discard(probe)


def close_at_exit() -> None:
    """Make sure that this process closes its probes at exit.

    A child that multiprocessing forked leaves by os._exit, past atexit, but runs the finalizers
    of multiprocessing first.
    """
    if os.getpid() in _closes_at_exit_of:
        return
    _closes_at_exit_of.add(os.getpid())
    atexit.register(_close_all)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    for probe in list(_living):
        try:
            probe.close(max(0.0, deadline - time.monotonic()))
        except Exception:  # one probe that cannot be closed does not cost the others their last lines
            logger.exception("a probe could not be closed at exit")


def _forget_parent() -> None:
    for probe in list(_living):
        probe.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
