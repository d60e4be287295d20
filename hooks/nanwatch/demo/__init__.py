"""`nanwatch demo`: watch a real model go bad, and nanwatch say so.

A Transformers model answers batches of prompts, and a sidecar runs beside it. On Enter, or by itself
after five seconds, one prompt is poisoned. With --no-sidecar it is the engine alone, as in a container.

    0     ONCE=1 or --once: three prompts were poisoned, and every number came out as planted;
          --end-after: its time is over
    1     ... or did not; or the sidecar did not come up, or ended before the demo
    2     NANWATCH_JOURNAL is a running engine's, or cannot be written; or another usage error
    70    NANWATCH_FAIL_FAST=1: the first poisoned prompt stopped the engine
    130   Ctrl-C
    143   SIGTERM; 129: SIGHUP, the terminal was closed
"""

import argparse
import logging
import math
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nanwatch.settings import Settings, SettingsError, boolean, listen_address

from .others import UnfitJournalError, refuse_unfit
from .pace import POISON_SECONDS, POISON_SECONDS_ONCE, Pace
from .sidecar import Sidecar, SidecarError, address_or_free_one

if TYPE_CHECKING:
    from .model import DemoModel

NO_SIDECAR = 1
USAGE = 2
INTERRUPTED = 130
SIGNALLED = 128  # and the signal's number, as a shell says it

_ENGINE_NEEDS = ("torch", "transformers", "tokenizers")
_SIDECAR_NEEDS = ("fastapi", "uvicorn", "prometheus_client")


def main(argv: Sequence[str]) -> int:
    """Run the demo and return its exit status.

    Raises:
        ModuleNotFoundError: an extra is not installed.
        SettingsError: a NANWATCH_* variable is not understood.
    """
    arguments = _arguments(argv)
    settings = Settings.from_environment()
    _refuse_if_missing(_ENGINE_NEEDS if arguments.no_sidecar else _ENGINE_NEEDS + _SIDECAR_NEEDS)
    _end_in_order_at(signal.SIGTERM, signal.SIGHUP)
    logging.basicConfig(stream=sys.stdout, format="       (the engine's log: %(message)s)")
    try:
        with _journal(settings) as journal:
            return (
                _run_alone(arguments, settings)
                if arguments.no_sidecar
                else _run(arguments, settings, journal)
            )
    except SidecarError as error:
        print(f"nanwatch demo: {error}", file=sys.stderr)
        return NO_SIDECAR
    except UnfitJournalError as error:
        print(f"nanwatch demo: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        _say("\nstopped")
        return INTERRUPTED


def _run(arguments: argparse.Namespace, settings: Settings, journal: Path) -> int:
    from .service import MODEL_NAME, DemoService

    refuse_unfit(settings, journal)
    wanted = arguments.listen or settings.listen
    address = address_or_free_one(wanted)
    if address != wanted and wanted[1] != 0:
        _say(f"port       {wanted[1]} is taken, so {address[1]}")
    with Sidecar(address, journal) as sidecar:
        model = _model()
        sidecar.wait_until_up()
        _say(f"sidecar    {sidecar.url}/metrics (process {sidecar.pid})")
        _say(f"status     nanwatch status --journal {journal}")
        pace = _pace(arguments)
        name = settings.model_name or MODEL_NAME
        service = DemoService(
            model, sidecar, pace, journal=journal, model_name=name, once=arguments.once, say=_say
        )
        return service.run()


def _run_alone(arguments: argparse.Namespace, settings: Settings) -> int:
    from .alone import EngineAlone
    from .service import MODEL_NAME

    model = _model()
    return EngineAlone(model, _pace(arguments), model_name=settings.model_name or MODEL_NAME, say=_say).run()


def _model() -> "DemoModel":
    from .model import make_model

    model = make_model()
    _say(f"model      Llama, {model.weights:,} weights, made and trained just now; runs on the CPU")
    return model


def _pace(arguments: argparse.Namespace) -> Pace:
    from .clients import BATCH

    pace = Pace(sys.stdin, poison_seconds=arguments.poison_every, end_seconds=arguments.end_after)
    _say(f"serving    batches of {BATCH} prompts through model.generate()")
    _say(f"poison     {pace.rule}\n")
    return pace


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _journal(settings: Settings) -> Iterator[Path]:
    """Yield the folder that NANWATCH_JOURNAL names, or a fresh one, so that the counters start at 0."""
    if settings.journal is not None:
        _say(f"journal    {settings.journal}")
        yield settings.journal
        return
    with tempfile.TemporaryDirectory(prefix="nanwatch-demo-") as folder:
        _say(f"journal    {folder} (removed at the end; NANWATCH_JOURNAL names another)")
        os.environ["NANWATCH_JOURNAL"] = folder
        yield Path(folder)


def _refuse_if_missing(needed: Sequence[str]) -> None:
    for name in needed:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _end_in_order_at(*numbers: signal.Signals) -> None:
    """End the sidecar and remove the journal; what we were started ignoring, as by nohup, stays ignored."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _terminated)


def _terminated(number: int, _frame: object) -> NoReturn:
    raise SystemExit(SIGNALLED + number)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse, and refuse what contradicts."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.poison_every is None:
        arguments.poison_every = POISON_SECONDS_ONCE if arguments.once else POISON_SECONDS
    if arguments.once and arguments.no_sidecar:
        parser.error("--once compares with what a sidecar of its own says: leave out --no-sidecar")
    if arguments.once and math.isinf(arguments.poison_every):
        parser.error("--once ends after three poisoned prompts: leave out --poison-every 0")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanwatch demo", description="Watch a real model go bad, and nanwatch say so."
    )
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="HOST:PORT",
        help="where its sidecar listens (default: NANWATCH_LISTEN, or 127.0.0.1:10626)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        default=_once(os.environ.get("ONCE", "")),
        help="end after three poisoned prompts: 0 if every number came out as planted, else 1 (as ONCE=1)",
    )
    parser.add_argument(
        "--no-sidecar",
        action="store_true",
        help="the engine alone: it writes the journal, and a sidecar of yours reads it",
    )
    parser.add_argument(
        "--poison-every",
        type=_seconds,
        metavar="SECONDS",
        help=f"how often a prompt is poisoned by itself; 0: never (default: {POISON_SECONDS:g})",
    )
    parser.add_argument(
        "--end-after",
        type=_seconds,
        default=math.inf,
        metavar="SECONDS",
        help="end by itself with status 0; 0: never (the default)",
    )
    return parser


def _once(value: str) -> bool:
    """Understand ONCE, as make hands it on.

    Raises:
        SettingsError: it is no boolean.
    """
    try:
        return bool(value) and boolean(value)
    except KeyError:
        raise SettingsError("ONCE", f"ONCE={value!r} is not understood: it takes 1 or 0") from None


def _seconds(value: str) -> float:
    """Return a time span; 0 stands for one that never ends."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{value!r} is not understood: it takes seconds from 0")
    return seconds or math.inf


def _address(value: str) -> tuple[str, int]:
    try:
        return listen_address(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not understood: it takes host:port") from None
