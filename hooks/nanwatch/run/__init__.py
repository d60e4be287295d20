"""`nanwatch run -- COMMAND`: any program with nanwatch switched on, and an end when it must end.

The program runs in a process group of its own, with its arguments, its terminal and the signals
that reach us passed through; its exit status is ours. Under fail-fast a raise on one
tensor-parallel rank leaves the others waiting for ever, and some engines end with status 0 after
one, so the journal is watched: once it says that fail-fast tripped, the group has 5 seconds to end
by itself, and the status is 70 whatever the engine says. A journal that cannot be written would hide
that, so under fail-fast the command is refused then.

No code is needed in the program: every Python that it starts hooks into the engine that it imports.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from nanwatch.settings import Settings

from .environment import environment_of_child
from .terminal import Terminal, signal_group
from .trip import TripWatch, refused_by_journal

USAGE, NAN_STATUS = 2, 70
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as a shell says it
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.1

_PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
)


def main(argv: list[str]) -> int:
    """Run a command; its own exit status, or NAN_STATUS where fail-fast tripped in it."""
    command = _parse(argv)
    settings = Settings.from_environment()
    if settings.fail_fast and (why := refused_by_journal(settings)):
        print(f"nanwatch run: under fail-fast the journal has to be writable: {why}", file=sys.stderr)
        return USAGE
    run_id = secrets.token_hex(8)
    watch = TripWatch(settings, run_id)
    environment = environment_of_child(os.environ, settings, run_id)
    try:
        status = _supervise(command, environment, watch)
    except OSError as error:
        print(f"nanwatch run: {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    if watch.corrupted or watch.tripped:
        print(watch.summary(), file=sys.stderr)
    return NAN_STATUS if watch.tripped else status


def _parse(argv: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(
        prog="nanwatch run", description=__doc__, usage="nanwatch run [--] COMMAND ..."
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    words: list[str] = parser.parse_args(argv).command
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        parser.error("which command? for example: nanwatch run -- vllm serve MODEL")
    return words


def _supervise(command: list[str], environment: dict[str, str], watch: TripWatch) -> int:
    """Run to the end; after a trip end the group. Returns the command's status as a shell says it."""
    with _signals_passed_on() as relay:
        child = subprocess.Popen(command, env=environment, process_group=0)  # noqa: S603  what was asked for
        terminal = Terminal(child.pid)
        terminal.lend()
        relay.begin(child.pid)
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(POLL_SECONDS)
            if _was_stopped(child.pid):
                terminal.stop_with_it()
            watch.look()
            if watch.tripped:
                _end_group(child)
    terminal.take_back()
    watch.look()  # what it wrote since, and died of
    if watch.tripped:
        signal_group(child.pid, signal.SIGKILL)  # ranks that outlived their parent
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Wait, then ask, then insist."""
    for ask in (None, signal.SIGTERM, signal.SIGKILL):
        if ask is not None:
            signal_group(child.pid, ask)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
            return


class _Relay:
    """Passes signals on to a process group; those that come before it is there, once it is."""

    def __init__(self) -> None:
        self._group: int | None = None
        self._early: list[signal.Signals] = []

    def begin(self, group: int) -> None:
        """Pass on to this group from now on."""
        self._group = group
        for number in self._early:
            signal_group(group, number)

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Pass one signal on."""
        if self._group is None:
            self._early.append(signal.Signals(number))
        else:
            signal_group(self._group, signal.Signals(number))


@contextmanager
def _signals_passed_on() -> Iterator[_Relay]:
    """Take the signals over, from before there is a command that could miss one."""
    relay = _Relay()
    before = {number: signal.signal(number, relay) for number in _PASSED_ON}
    try:
        yield relay
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _was_stopped(pid: int) -> bool:
    """Say whether the command was stopped from its terminal (Ctrl-Z) since the last call."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
    return False
