"""`nanwatch demo`: watch a real model go bad, and nanwatch say so.

A Transformers model answers batches of prompts, and a sidecar runs beside it. On Enter, or by itself
after five seconds, one prompt is poisoned.

    0     ONCE=1 or --once: three prompts were poisoned, and every number came out as planted
    1     ... or did not; or the sidecar did not come up
    70    NANWATCH_FAIL_FAST=1: the first poisoned prompt stopped the engine
    130   Ctrl-C
    143   SIGTERM
"""

import argparse
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from nanwatch.settings import Settings, listen_address

from .pace import Pace
from .sidecar import Sidecar, SidecarError, address_or_free_one

NO_SIDECAR = 1
INTERRUPTED = 130
TERMINATED = 143

_NEEDED = ("torch", "transformers", "tokenizers", "fastapi", "uvicorn", "prometheus_client")


def main(argv: Sequence[str]) -> int:
    """Run the demo and return its exit status.

    Raises:
        ModuleNotFoundError: an extra is not installed.
        SettingsError: a NANWATCH_* variable is not understood.
    """
    arguments = _parser().parse_args(argv)
    settings = Settings.from_environment()
    _refuse_if_missing()
    signal.signal(signal.SIGTERM, _terminated)
    logging.basicConfig(stream=sys.stdout, format="       (the engine's log: %(message)s)")
    try:
        with _journal(settings) as journal:
            return _run(
                arguments.listen or settings.listen, journal, settings.model_name, once=arguments.once
            )
    except SidecarError as error:
        print(f"nanwatch demo: {error}", file=sys.stderr)
        return NO_SIDECAR
    except KeyboardInterrupt:
        _say("\nstopped")
        return INTERRUPTED


def _run(wanted: tuple[str, int], journal: Path, model_name: str | None, *, once: bool) -> int:
    from .model import make_model
    from .service import BATCH, MODEL_NAME, DemoService

    address = address_or_free_one(wanted)
    if address != wanted and wanted[1] != 0:
        _say(f"port       {wanted[1]} is taken, so {address[1]}")
    with Sidecar(address, journal) as sidecar:
        model = make_model()
        _say(f"model      Llama, {model.weights:,} weights, made and trained just now; runs on the CPU")
        sidecar.wait_until_up()
        _say(f"sidecar    {sidecar.url}/metrics (process {sidecar.pid})")
        pace = Pace(sys.stdin, once=once)
        _say(f"serving    batches of {BATCH} prompts through model.generate()")
        _say(f"poison     {pace.rule}\n")
        name = model_name or MODEL_NAME
        return DemoService(model, sidecar, pace, model_name=name, once=once, say=_say).run()


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


def _refuse_if_missing() -> None:
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _terminated(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)


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
        default=os.environ.get("ONCE", "0") not in {"", "0"},
        help="end after three poisoned prompts: 0 if every number came out as planted, else 1 (as ONCE=1)",
    )
    return parser


def _address(value: str) -> tuple[str, int]:
    try:
        return listen_address(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not understood: it takes host:port") from None
