"""A real sidecar: a process of its own on a free port of the loopback."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx


class Sidecar:
    """Starts on entry; ends by SIGTERM, and is killed should that not be enough."""

    def __init__(
        self,
        journal: Path,
        *options: str,
        starter: Sequence[str] = (sys.executable, "-m"),
        **environment: str,
    ) -> None:
        command = [
            *starter,
            "nanwatch_sidecar",
            "--listen",
            "127.0.0.1:0",
            "--journal",
            str(journal),
        ]
        self.process = subprocess.Popen(
            [*command, *options], env=_surroundings(environment), stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()
        address = re.search(r"http://\S+:\d+", self.first_line)
        assert address is not None, self.first_line + self.process.stderr.read()
        self.url = address[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stderr is not None:
                self.process.stderr.close()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str = "/metrics") -> httpx.Response:
        return httpx.get(self.url + path, timeout=30)

    def wait(self, timeout: float = 30.0) -> int:
        return self.process.wait(timeout)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; returns the exit status and the seconds it took."""
        started = time.monotonic()
        self.process.send_signal(number)
        return self.wait(), time.monotonic() - started

    def said(self) -> list[str]:
        """Return the lines it wrote after its first, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().splitlines()


def asking_for_all(sidecar: Sidecar) -> socket.socket:
    """Return a client that asked for 10,000 requests, and has read nothing of the answer yet."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(5)
    client.connect(("127.0.0.1", sidecar.port))
    client.sendall(b"GET /v1/corrupted-requests?limit=10000 HTTP/1.1\r\nHost: a\r\n\r\n")
    return client


def start_and_end(*options: str, **environment: str) -> tuple[int, list[str]]:
    """Run a sidecar that is expected to refuse; returns its status and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "nanwatch_sidecar", *options],
        env=_surroundings(environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def _surroundings(environment: dict[str, str]) -> dict[str, str]:
    """Return this process's environment without its NANWATCH_ variables, and what a test adds."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("NANWATCH_")}
    return own | environment
