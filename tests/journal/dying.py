"""Processes whose system calls can be counted, ended, failed, cut short, or held up.

A `Process` runs a copy of the journal of its own: as in real processes, two of them share no lock
and no table of descriptors, only the folder. Its copy sees stand-ins for `os`, `fcntl` and `time`.
"""

import fcntl
import functools
import importlib
import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import nanwatch.journal

SYSTEM_CALLS = frozenset(
    {"open", "close", "write", "pread", "ftruncate", "fstat", "lstat", "rename", "unlink"}
    | {"mkdir", "chmod", "chown", "fchmod", "fchown", "flock"}
)
_JOURNAL = Path(nanwatch.journal.__file__).parent
_numbers = count(1)

# What happens at one call: given the real call and its arguments, returns what the process gets.
Action = Callable[[Callable[..., Any], tuple[Any, ...]], Any]


class DiedError(BaseException):
    """The process was killed; nothing that it does from here on has any effect."""


class Process:
    """One process: run its writer, and `end` it.

    `actions` says at which call (from 1) what happens, `always` what happens at all of a name.
    """

    def __init__(self) -> None:
        self.actions: dict[int, Action] = {}
        self.always: dict[str, Action] = {}
        self.before_call: Callable[[str], None] = lambda _: None
        self.calls: list[str] = []
        self._dead = False
        self._open: set[int] = set()
        self._package = _copy_of_the_journal()
        for name in ("claim", "descriptors", "folder", "held", "reader"):
            module = self.module(name)
            for real in (os, fcntl):
                if hasattr(module, real.__name__):
                    setattr(module, real.__name__, _StandIn(real, self._call))
        self.module("held").time = _NoPause

    def module(self, name: str) -> Any:
        """Return one module of this process's own journal."""
        return importlib.import_module(f"{self._package}.{name}")

    def live(self, actions: dict[int, Action] | None = None) -> None:
        """Begin a life: calls are counted from 1 again."""
        self.actions, self.always, self.calls, self._dead = actions or {}, {}, [], False

    def end(self) -> None:
        """Do what the kernel does at the end of a process: close what it had open."""
        self._dead = True
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
        self.module("descriptors")._open.clear()

    @property
    def open_descriptors(self) -> int:
        """How many of its files are open."""
        return len(self._open)

    def _call(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if self._dead:
            raise DiedError
        self.before_call(name)
        self.calls.append(name)
        action = self.actions.get(len(self.calls)) or self.always.get(name, _let_through)
        try:
            return action(functools.partial(self._done, name, real), arguments)
        except DiedError:
            self._dead = True
            raise

    def _done(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        result = real(*arguments)
        if name == "open":
            self._open.add(result)
        if name == "close":
            self._open.discard(arguments[0])
        return result


class _StandIn:
    """A module whose system calls go through a process; all else is the module's own."""

    def __init__(self, real: ModuleType, call: Callable[..., Any]) -> None:
        self._real, self._call = real, call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name in SYSTEM_CALLS:
            found = functools.partial(self._call, name, found)
        setattr(self, name, found)
        return found


class _NoPause:
    """Time without waiting."""

    @staticmethod
    def sleep(_: float) -> None:
        """Return at once."""


def die(_real: Callable[..., Any], _arguments: tuple[Any, ...]) -> Any:
    """Be killed before the call."""
    raise DiedError


def die_in_write(share: float) -> Action:
    """Be killed when `share` of the bytes were written, at most all but one."""

    def action(real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        descriptor, data = arguments
        real(descriptor, data[: min(int(len(data) * share), len(data) - 1)])
        raise DiedError

    return action


def come_short(real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Write half and say so, as on a full disk."""
    descriptor, data = arguments
    return real(descriptor, data[: len(data) // 2])


def fail(number: int) -> Action:
    """Fail without any effect."""

    def action(_real: Callable[..., Any], _arguments: tuple[Any, ...]) -> Any:
        raise OSError(number, os.strerror(number))

    return action


def fail_after(number: int) -> Action:
    """Fail although it was done, as close does."""

    def action(real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        real(*arguments)
        raise OSError(number, os.strerror(number))

    return action


def _let_through(real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return real(*arguments)


def _copy_of_the_journal() -> str:
    """Import the journal once more, under another name."""
    name = f"journal_of_process_{next(_numbers)}"
    spec = spec_from_file_location(name, _JOURNAL / "__init__.py", submodule_search_locations=[str(_JOURNAL)])
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    for module in ("claim", "descriptors", "folder", "held", "line", "memory", "reader", "writer"):
        importlib.import_module(f"{name}.{module}")
    return name
