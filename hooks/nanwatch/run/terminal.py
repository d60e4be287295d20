"""The terminal and the process group of a command that runs in front of us."""

import os
import signal
import sys
from contextlib import suppress


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a whole process group, if any of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class Terminal:
    """The terminal, lent to the command's group as a shell lends it to what runs in front."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._ours = os.getpgrp()
        self._lent = _owns_terminal()

    def lend(self) -> None:
        """Let the group read the terminal; one that already tried, and was stopped for it, goes on."""
        self._give_to(self._group)
        signal_group(self._group, signal.SIGCONT)

    def take_back(self) -> None:
        """Be in front again."""
        self._give_to(self._ours)

    def stop_with_it(self) -> None:
        """Stop as the command did, so that the shell has the terminal; go on together."""
        self.take_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.lend()

    def _give_to(self, group: int) -> None:
        if not self._lent:
            return
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # who is not in front is stopped for this
        with suppress(OSError):
            os.tcsetpgrp(sys.stdin.fileno(), group)
        signal.signal(signal.SIGTTOU, before)


def _owns_terminal() -> bool:
    try:
        return os.isatty(sys.stdin.fileno()) and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no stdin at all, or none that is a file
        return False
