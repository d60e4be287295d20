"""Clients that only hold on, and clients that talk nonsense: what they cannot do to a sidecar."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nanwatch_sidecar.connections import MOST_CONNECTIONS
from tests.engine import Engine

from .running import Sidecar, asking_for_all

HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost:"

IN_A_HURRY = """
import sys
from nanwatch_sidecar import connections
from nanwatch_sidecar.server import main
connections.PATIENCE_SECONDS = 1.0
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def sidecar(journal: Path) -> Iterator[Sidecar]:
    with Sidecar(journal) as running:
        yield running


def connect(sidecar: Sidecar) -> socket.socket:
    return socket.create_connection(("127.0.0.1", sidecar.port), timeout=5)


def read_to_the_end(client: socket.socket) -> bytes:
    read = b""
    try:
        while more := client.recv(1 << 20):
            read += more
    except ConnectionResetError:
        pass
    return read


def test_who_never_asks_and_who_never_reads_is_cut_off(journal: Path) -> None:
    """A request that does not become whole, and an answer that nobody takes, have their time."""
    starter = (sys.executable, "-c", IN_A_HURRY)
    with Engine(journal) as engine, Sidecar(journal, starter=starter) as sidecar:
        engine.corrupt(*(f"req-{n}" + "x" * 200 for n in range(10_000)))
        with asking_for_all(sidecar) as greedy, connect(sidecar) as slow:
            slow.sendall(HALF_A_REQUEST)
            assert read_to_the_end(slow) == b""
            answer = read_to_the_end(greedy)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert not answer.endswith(b"0\r\n\r\n")
        assert sidecar.get().status_code == 200
        assert sidecar.end()[0] == 0
        assert sidecar.said() == []


def test_who_only_holds_on_keeps_no_scraper_out(sidecar: Sidecar) -> None:
    """Past so many open connections the one that waits the longest makes room for the next."""
    with ExitStack() as opened:
        held = [opened.enter_context(connect(sidecar)) for _ in range(MOST_CONNECTIONS + 50)]
        for client in held:
            client.sendall(HALF_A_REQUEST)
        assert sidecar.get().status_code == 200
        descriptors = len(list(Path(f"/proc/{sidecar.process.pid}/fd").iterdir()))
        assert MOST_CONNECTIONS <= descriptors < MOST_CONNECTIONS + 20
        assert read_to_the_end(held[0]) == b""
        held[-1].sendall(b" a\r\n\r\n")
        assert held[-1].recv(12) == b"HTTP/1.1 200"


NONSENSE = {
    "zeros": b"\0" * 100,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\n",
    "a header of 200 kB": b"GET / HTTP/1.1\r\nA: " + b"a" * 200_000,
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_and_not_written_down(sidecar: Sidecar, nonsense: bytes) -> None:
    """What is not understood gets a 4xx; were it logged, anybody could fill the disk."""
    with connect(sidecar) as client:
        client.sendall(nonsense)
        assert client.recv(10) == b"HTTP/1.1 4"
    assert sidecar.get("/healthz").status_code == 200
    assert sidecar.end()[0] == 0
    assert sidecar.said() == []
