"""The demo's sidecar: a process of its own, and what it says over HTTP."""

import ctypes
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self
from urllib.request import ProxyHandler, build_opener

START_SECONDS = 30.0
STOP_SECONDS = 5.0
ANSWER_SECONDS = 5.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  listened on where the user asks for it

# What listens on this machine is never behind a proxy.
_open = build_opener(ProxyHandler({})).open


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class SidecarError(RuntimeError):
    """The sidecar did not come up, or is gone; the message holds what it said."""


class Sidecar:
    """`python -m nanwatch_sidecar` as a child; a context manager that ends it."""

    def __init__(self, address: tuple[str, int], journal: Path) -> None:
        host, self.port = address
        self._listen = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        seen_at = _ANYWHERE.get(host, host)
        self.url = f"http://[{seen_at}]:{self.port}" if ":" in seen_at else f"http://{seen_at}:{self.port}"
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by stop
        self._process = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "nanwatch_sidecar", "--listen", self._listen, "--journal", str(journal)],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  there is no other thread yet
        )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def wait_until_up(self) -> None:
        """Wait for /healthz.

        Raises:
            SidecarError: it ended, or did not answer within START_SECONDS.
        """
        if not wait_for(lambda: self._process.poll() is not None or self._answers(), START_SECONDS):
            raise SidecarError(f"the sidecar did not answer on {self.url} within {START_SECONDS:g} s")
        self._refuse_if_ended()

    def scrape(self) -> "Scrape":
        """Return what Prometheus would be told now."""
        return Scrape(self._get("/metrics").decode())

    def corrupted_requests(self, since: float) -> list[dict[str, Any]]:
        """Return the requests that were corrupted since (Unix seconds), newest first."""
        answer = json.loads(self._get(f"/v1/corrupted-requests?limit=10000&since={since:.3f}"))
        listed: list[dict[str, Any]] = answer["corrupted_requests"]
        return listed

    def stop(self) -> None:
        """End the child, by force if it does not end."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            return bool(self._ask("/healthz"))
        except OSError:
            return False

    def _get(self, path: str) -> bytes:
        """Return an answer.

        Raises:
            SidecarError: there was none.
        """
        try:
            return self._ask(path)
        except (OSError, HTTPException) as error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self._refuse_if_ended()
            raise SidecarError(f"the sidecar did not answer {self.url}{path}: {error}") from error

    def _ask(self, path: str) -> bytes:
        with _open(self.url + path, timeout=ANSWER_SECONDS) as answer:
            body: bytes = answer.read()
        return body

    def _refuse_if_ended(self) -> None:
        if self._process.poll() is not None:
            self._said.seek(0)
            said = self._said.read().strip()
            raise SidecarError(f"the sidecar ended with {self._process.returncode}: {said}")


def _end_with_parent() -> None:
    """Have the kernel end this process with the demo, also with one that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Scrape:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [line for line in text.splitlines() if line and not line.startswith("#")]

    def lines(self, name: str, model_name: str) -> list[str]:
        """Return the samples of one metric and one model, as they were sent."""
        label = f'model_name="{model_name}"'
        return [line for line in self._samples if re.match(rf"{name}\{{", line) and label in line]

    def total(self, name: str, model_name: str) -> int:
        """Return their sum, 0 where there are none."""
        return sum(int(float(line.rpartition(" ")[2])) for line in self.lines(name, model_name))


def address_or_free_one(wanted: tuple[str, int]) -> tuple[str, int]:
    """Return the address if it can be had, else the same host with a free port."""
    host, port = wanted
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (port, 0):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            return host, probe.getsockname()[1]
    return wanted


def wait_for(ready: Callable[[], bool], seconds: float) -> bool:
    """Ask ten times a second until `ready`; False if that took too long."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
