"""The `nanwatch` command: each word is a module of its own, imported only when it is asked for."""

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from . import __version__
from .settings import SettingsError

USAGE, FAILED = 2, 1

_COMMANDS = {
    "run": ("nanwatch.run", "run a program with nanwatch switched on, and end it when it must end"),
    "sidecar": ("nanwatch_sidecar.server", "serve the journal's counters on /metrics"),
    "status": ("nanwatch.status", "print the journal's path, sources and totals"),
    "drill": ("nanwatch.drill", "plant a corrupted request that never happened, to see the alert arrive"),
    "demo": ("nanwatch.demo", "watch a real model go bad, and nanwatch say so"),
}
_EXTRA_OF = {"sidecar": "sidecar", "demo": "demo,sidecar"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 well, 2 usage, else as the command says."""
    _say_anything()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _main(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # `nanwatch status | head`: whoever reads has enough
        _end_stdout()
        return 0
    except OSError as error:  # a full disk behind stdout, say
        with suppress(OSError):
            print(f"{' '.join(['nanwatch', *words[:1]])}: {_said(error)}", file=sys.stderr, flush=True)
        _end_stdout()
        return FAILED


def _main(words: list[str]) -> int:
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_help())
        return 0 if words else USAGE
    if words[0] == "--version":
        print(f"nanwatch {__version__}")
        return 0
    if words[0] not in _COMMANDS:
        print(f"nanwatch: {words[0]!r} is not a command\n\n{_help()}", file=sys.stderr)
        return USAGE
    return _run(words[0], words[1:])


def _say_anything() -> None:
    """Take any text: a closed stream (`>&-`) swallows it, and what stdout's encoding lacks is escaped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  for good
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(word: str, rest: list[str]) -> int:
    try:
        command: Callable[[list[str]], int] = import_module(_COMMANDS[word][0]).main
        return command(rest)
    except SettingsError as error:
        print(f"nanwatch {word}: {error}", file=sys.stderr)
        return USAGE
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get(word)
        if extra is None:
            raise
        print(
            f"nanwatch {word}: {error.name} is not installed: pip install '.[{extra}]' in nanwatch's folder",
            file=sys.stderr,
        )
        return USAGE


def _end_stdout() -> None:
    """Write what is buffered, or let it go nowhere: the interpreter would try once more as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):  # a stream without a number, as a caller may have put there
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _said(error: OSError) -> str:
    try:
        Path.cwd()
    except OSError:
        return f"{error}: the current folder was deleted, go to one that is there"
    return str(error)


def _help() -> str:
    listed = "\n".join(f"  {word:<10}{what}" for word, (_, what) in _COMMANDS.items())
    return f"usage: nanwatch COMMAND [--help]\n\n{listed}\n\n  --version"


if __name__ == "__main__":
    sys.exit(main())
