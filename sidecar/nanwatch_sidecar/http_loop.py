"""uvicorn on one socket, in one loop, with our own end: a signal, or a reason to leave.

uvicorn raises a signal again once it has shut down, so that the process would end by it; a sidecar
that is told to stop has done well and ends with a status of its own.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from .connections import BoundedConnection

DRAIN_SECONDS = 0.5  # for answers that are under way when the end comes
_LOOK_SECONDS = 0.1


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the loop's own handlers are in place


async def run(
    app: FastAPI, listener: socket.socket, is_over: Callable[[], bool], on_end: Callable[[], None]
) -> None:
    """Serve until SIGTERM, SIGINT or `is_over`; `on_end` is called before answers are drained."""
    loop = asyncio.get_running_loop()
    server = _Server(_config(app))

    def end() -> None:
        if not server.should_exit:
            server.should_exit = True
            on_end()
            loop.call_later(DRAIN_SECONDS, _cut_all, server)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    watch = loop.create_task(_end_when(is_over, end))
    await server.serve(sockets=[listener])
    watch.cancel()


def _cut_all(server: uvicorn.Server) -> None:
    """Give up answers that nobody takes, as if their clients had left: cancelled, each is a page of log."""
    for connection in list(server.server_state.connections):
        connection.transport.abort()


async def _end_when(is_over: Callable[[], bool], end: Callable[[], None]) -> None:
    while not is_over():  # noqa: ASYNC110  no event comes: time alone may end it
        await asyncio.sleep(_LOOK_SECONDS)
    end()


def _config(app: FastAPI) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # what a client does wrong is its own affair, and there is no end to it
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    # A float works as well as the int that it is declared to be; a second would be too long.
    config.timeout_graceful_shutdown = 2 * DRAIN_SECONDS  # type: ignore[assignment]
    return config
