"""Real forks: a function run in a child, as another user where a test needs one."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

CHILD_SECONDS = 60

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


class User(NamedTuple):
    """Somebody else, without a name in the password database."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def in_child(work: Callable[[], Any], user: User | None = None) -> Any:
    """Run `work` in a forked child; returns what it returned, which has to be JSON."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.alarm(CHILD_SECONDS)  # a child that hangs is killed
        status = 1
        try:
            _become(user)
            os.write(writing, json.dumps(work()).encode())
            status = 0
        except BaseException:  # noqa: BLE001  the child must not go on with the tests
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)
    os.close(writing)
    said = b""
    while chunk := os.read(reading, 65536):
        said += chunk
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    assert status == 0, "the child failed: see its standard error"
    return json.loads(said)


def refusal(work: Callable[[], object], user: User | None = None) -> str | None:
    """Run `work` in a child; returns the words of the OSError it raised, or None."""

    def attempt() -> str | None:
        try:
            work()
        except OSError as error:
            return str(error)
        return None

    said: str | None = in_child(attempt, user)
    return said


def kill(pid: int) -> None:
    """End a process of ours, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _become(user: User | None) -> None:
    if user is not None:
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
