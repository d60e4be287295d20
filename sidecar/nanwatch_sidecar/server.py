"""The sidecar's process: arguments, address, exit status.

    0 ended by SIGTERM or SIGINT   1 the address cannot be had   2 usage   3 NaN, under --exit-on-nan
The heavy imports come after the arguments and the address: a mistake in these is answered at once.
"""

import argparse
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from nanwatch.journal.folder import default_folder
from nanwatch.journal.reader import JournalReader
from nanwatch.settings import Settings, SettingsError, journal_folder, listen_address

from .exit_on_nan import ExitOnNan

NO_ADDRESS = 1
USAGE = 2

logger = logging.getLogger("nanwatch.sidecar")


def main(argv: Sequence[str]) -> int:
    """Run `nanwatch sidecar` and return its exit status."""
    signal.signal(signal.SIGTERM, _end_well)  # until the server takes signals
    logging.basicConfig(level=logging.INFO, format="nanwatch sidecar: %(message)s")
    arguments = _parser().parse_args(argv)
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        logger.error("%s", error)  # noqa: TRY400  one line, no traceback
        return USAGE
    given = {name: value for name, value in vars(arguments).items() if name != "exit_on_nan" and value}
    return serve(replace(settings, **given), exit_on_nan=arguments.exit_on_nan)


def serve(settings: Settings, *, exit_on_nan: bool = False) -> int:
    """Serve the journal until a signal, or NaN, ends it; returns the exit status."""
    try:
        listener = _bind(*settings.listen)
    except OSError as error:
        where, knobs = _written(*settings.listen), "--listen or NANWATCH_LISTEN names another address"
        logger.error("cannot listen on %s: %s; %s", where, error.strerror, knobs)  # noqa: TRY400  one line
        return NO_ADDRESS
    ending = ExitOnNan() if exit_on_nan or settings.fail_fast else None
    return _serve_on(listener, settings, ending)


def _serve_on(listener: socket.socket, settings: Settings, ending: ExitOnNan | None) -> int:
    import asyncio

    from . import http_loop
    from .app import create_app
    from .journal_view import JournalView
    from .open_files import most_followed_files
    from .thrift import give_memory_back

    give_memory_back()
    folder = (settings.journal or default_folder(writing=False)).absolute()
    reader = JournalReader(folder, most_files=most_followed_files())
    logger.info("listening on http://%s, journal %s", _written(*listener.getsockname()[:2]), folder)
    view = JournalView(reader, ending.polled if ending else None)
    view.start()
    app = create_app(settings, view, ending.scraped if ending else None)
    gc.freeze()  # what is imported stays: looking through it now and then would hold a scrape up for 40 ms
    asyncio.run(http_loop.run(app, listener, lambda: ending is not None and ending.due, view.stop))
    view.close()
    return _status(ending)


def _status(ending: ExitOnNan | None) -> int:
    if ending is None or not ending.new:
        return 0
    logger.info("ending with status %d: corrupted requests since the start: %d", ending.status, ending.new)
    return ending.status


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; a port 0 is any free one."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _end_well(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanwatch sidecar", description="Serve the journal's counters over HTTP."
    )
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="HOST:PORT",
        help="the address to serve on; port 0: any free one (default: NANWATCH_LISTEN, or 127.0.0.1:10626)",
    )
    parser.add_argument(
        "--journal",
        type=journal_folder,
        metavar="FOLDER",
        help="the folder that engines write to (default: NANWATCH_JOURNAL)",
    )
    parser.add_argument(
        "--exit-on-nan",
        action="store_true",
        help="end with status 3 after the first corrupted request since the start: after two scrapes, "
        "after 90 s, or at a SIGTERM that comes first; NANWATCH_FAIL_FAST=1 implies it",
    )
    return parser


def _address(value: str) -> tuple[str, int]:
    try:
        return listen_address(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{value!r} is not understood: it takes host:port or [host]:port"
        ) from None
