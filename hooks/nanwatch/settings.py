"""Every NANWATCH_* variable of both halves, read once into a frozen dataclass.

A value that is not understood is an error, never a silent false; so is a name that is not known,
with the nearest one offered. Names that Kubernetes makes for a Service called "nanwatch" are let
through.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

PREFIX = "NANWATCH_"
LONGEST_WINDOW_SECONDS = 3600.0
_MADE_BY_KUBERNETES = re.compile(r"NANWATCH_(SERVICE_.*|PORT(_.*)?)")
_STOPPING = frozenset({"NANWATCH_FAIL_FAST", "NANWATCH_ON_NAN"})
_DOES_NOT_STOP = frozenset({"", "0", "false", "no", "off", "observe"})
_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class SettingsError(ValueError):
    """A NANWATCH_* variable is unknown, not understood, or contradicts another one.

    `variable` is the one that was given, `meant` the known one that it stands for or comes nearest.
    """

    def __init__(self, variable: str, message: str, meant: str | None = None) -> None:
        super().__init__(message)
        self.variable, self.meant = variable, meant or variable

    def keeps_from_starting(self, environment: Mapping[str, str] = os.environ) -> bool:
        """Whether an engine may not start with it: to stop at NaN was meant, so it is not to run blindly."""
        return self.meant in _STOPPING or any(
            environment.get(name, "").strip().lower() not in _DOES_NOT_STOP for name in _STOPPING
        )


class OnNan(Enum):
    """What happens at the first corrupted request."""

    OBSERVE = "observe"  # count it
    ABORT = "abort"  # end only the corrupted request, where the engine can
    RAISE = "raise"  # fail-fast: the step that made the NaN raises


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment, understood; None where the default depends on who asks."""

    enabled: bool | None = None
    on_nan: OnNan = OnNan.OBSERVE
    all_ranks: bool = False  # count on ranks whose tokens do not reach the client too
    journal: Path | None = None
    journal_group: str | None = None
    model_name: str | None = None
    replica: str | None = None
    listen: tuple[str, int] = ("127.0.0.1", 10626)
    health_window_seconds: float = 60.0
    health_requests: int = 1
    health_ratio: float = 0.0
    run_id: str = ""  # set by `nanwatch run` for what it starts

    @property
    def fail_fast(self) -> bool:
        """Whether the first corrupted request raises; off unless it was asked for."""
        return self.on_nan is OnNan.RAISE

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read the NANWATCH_* variables.

        Raises:
            SettingsError: one line with the variable, its value and what it takes.
        """
        given = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
        parsed = {name: _parse(name, value) for name, value in given.items() if not _is_kubernetes(name)}
        on_nan = _on_nan(parsed, given)
        enabled = parsed.pop("NANWATCH_ENABLED", None)
        fields = {_VARIABLES[name].field: value for name, value in parsed.items()}
        fields |= {"on_nan": on_nan, "enabled": True if on_nan is not OnNan.OBSERVE else enabled}
        return cls(**fields)


def boolean(value: str) -> bool:
    """1/0, true/false, yes/no, on/off in any case."""
    return _BOOLEANS[value.strip().lower()]


def listen_address(value: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`, or `:port` for every address; port 0 takes a free one."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host) != host.startswith("["):  # noqa: PLR2004
        raise ValueError(value)
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  written out by the caller as ":port"


def window_seconds(value: str) -> float:
    """A window of health, in seconds."""
    return _between(float(value), 1.0, LONGEST_WINDOW_SECONDS)


def request_count(value: str) -> int:
    """A number of corrupted requests, at least 1."""
    return int(_between(int(value), 1, math.inf))


def ratio(value: str) -> float:
    """A share, from 0 to 1."""
    return _between(float(value), 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Variable:
    field: str
    parse: Callable[[str], Any]
    takes: str


def _text(value: str) -> str:
    if not value:
        raise ValueError(value)
    return value


def _absolute_path(value: str) -> Path:
    path = Path(value)
    if not value or not path.is_absolute() or "\0" in value:
        raise ValueError(value)
    return path


def journal_folder(value: str) -> Path:
    """Take what follows --journal, also a folder below the current one.

    Raises:
        argparse.ArgumentTypeError: it is empty, which would be the current folder.
    """
    if not value:
        from argparse import ArgumentTypeError  # an engine, which imports this module, has no use for it

        raise ArgumentTypeError("it takes the path of a folder, found ''")
    return Path(value)


def _between(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError(value)
    return value


_BOOLEAN = "1 or 0, true or false, yes or no, on or off"
_VARIABLES = {
    "NANWATCH_ENABLED": _Variable("enabled", boolean, _BOOLEAN),
    "NANWATCH_FAIL_FAST": _Variable("fail_fast", boolean, _BOOLEAN),
    "NANWATCH_ON_NAN": _Variable("on_nan", lambda v: OnNan(v.strip().lower()), "observe, abort or raise"),
    "NANWATCH_ALL_RANKS": _Variable("all_ranks", boolean, _BOOLEAN),
    "NANWATCH_JOURNAL": _Variable("journal", _absolute_path, "the absolute path of a folder"),
    "NANWATCH_JOURNAL_GROUP": _Variable("journal_group", _text, "the name or number of a group"),
    "NANWATCH_MODEL_NAME": _Variable("model_name", _text, "a name that is not empty"),
    "NANWATCH_REPLICA": _Variable("replica", _text, "a name that is not empty"),
    "NANWATCH_LISTEN": _Variable("listen", listen_address, "host:port, [host]:port or :port"),
    "NANWATCH_HEALTH_WINDOW_SECONDS": _Variable(
        "health_window_seconds", window_seconds, f"a number of seconds from 1 to {LONGEST_WINDOW_SECONDS:.0f}"
    ),
    "NANWATCH_HEALTH_REQUESTS": _Variable("health_requests", request_count, "a whole number from 1"),
    "NANWATCH_RUN_ID": _Variable("run_id", _text, "an id that is not empty; `nanwatch run` sets it"),
    "NANWATCH_HEALTH_RATIO": _Variable("health_ratio", ratio, "a number from 0 to 1"),
}


def _is_kubernetes(name: str) -> bool:
    return _MADE_BY_KUBERNETES.fullmatch(name) is not None


def _parse(name: str, value: str) -> Any:
    variable = _VARIABLES.get(name)
    if variable is None:
        nearest = get_close_matches(name, _VARIABLES, n=1, cutoff=0.0)[0]
        raise SettingsError(
            name, f"{name}={value!r} is not a variable of nanwatch: {_suggestion(name)}", nearest
        )
    try:
        return variable.parse(value)
    except (ValueError, KeyError):
        raise SettingsError(name, f"{name}={value!r} is not understood: it takes {variable.takes}") from None


def _suggestion(name: str) -> str:
    """Name the variable that was meant, or all where none is like it; what all begin with says nothing."""
    known = {variable.removeprefix(PREFIX): variable for variable in _VARIABLES}
    alike = get_close_matches(name.removeprefix(PREFIX), known, n=1)
    return f"did you mean {known[alike[0]]}?" if alike else f"it knows {', '.join(_VARIABLES)}"


def _on_nan(parsed: dict[str, Any], given: Mapping[str, str]) -> OnNan:
    """Join NANWATCH_ON_NAN and NANWATCH_FAIL_FAST, and refuse what contradicts."""
    on_nan: OnNan | None = parsed.pop("NANWATCH_ON_NAN", None)
    fail_fast: bool | None = parsed.pop("NANWATCH_FAIL_FAST", None)
    if fail_fast is not None and on_nan is not None and fail_fast != (on_nan is OnNan.RAISE):
        raise _contradiction("NANWATCH_FAIL_FAST", "NANWATCH_ON_NAN", given)
    joined = OnNan.RAISE if fail_fast else on_nan or OnNan.OBSERVE
    if joined is not OnNan.OBSERVE and parsed.get("NANWATCH_ENABLED") is False:
        asked_by = "NANWATCH_FAIL_FAST" if fail_fast else "NANWATCH_ON_NAN"
        raise _contradiction(asked_by, "NANWATCH_ENABLED", given)
    return joined


def _contradiction(one: str, other: str, given: Mapping[str, str]) -> SettingsError:
    return SettingsError(one, f"{one}={given[one]!r} contradicts {other}={given[other]!r}: unset one of them")
