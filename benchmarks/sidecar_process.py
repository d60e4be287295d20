"""A sidecar in a process of its own, as the benchmarks start it, scrape it and weigh it."""

import http.client
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

IMPORTS = "import nanwatch_sidecar.server, nanwatch_sidecar.app, nanwatch_sidecar.http_loop"
_READY_WITHIN_SECONDS = 60.0
_COUNTER = re.compile(rb"^corrupted_requests_total\{.*\} (\S+)$", re.MULTILINE)


class SidecarProcess:
    """Serves a journal on a free port of the loopback while the block runs."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        command = [sys.executable, "-m", "nanwatch_sidecar", "--listen", "127.0.0.1:0"]
        command += ["--journal", str(self._journal)]
        self._process = subprocess.Popen(  # noqa: S603  our own command
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self._process.stderr is not None  # noqa: S101  for the type checker
        said = (re.search(r"127\.0\.0\.1:(\d+)", line) for line in self._process.stderr)
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", next(int(found[1]) for found in said if found), timeout=10
        )
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.wait(10)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def seconds_until_ready(self) -> float:
        """Ask until /readyz says 200; return the seconds since the process was started."""
        while self.get("/readyz")[0] != http.client.OK:
            if time.perf_counter() - self._started > _READY_WITHIN_SECONDS:
                raise TimeoutError(f"the sidecar was not ready within {_READY_WITHIN_SECONDS:g} s")
            time.sleep(0.005)
        return time.perf_counter() - self._started

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body; once more where the connection had been idle for too long."""
        try:
            return self._ask(path)
        except http.client.RemoteDisconnected:
            self._connection.close()
            return self._ask(path)

    def _ask(self, path: str) -> tuple[int, bytes]:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def scrape(self) -> tuple[float, bytes]:
        """Return how many milliseconds one scrape of /metrics took, and what it says."""
        start = time.perf_counter()
        body = self.get("/metrics")[1]
        return (time.perf_counter() - start) * 1e3, body

    def resident_megabytes(self) -> float:
        """Return the memory that it holds now."""
        return resident_megabytes(self._process.pid)


def corrupted_in(scrape: bytes) -> int:
    """Add up the corrupted requests of all replicas in a scrape."""
    return sum(int(float(value)) for value in _COUNTER.findall(scrape))


def series_in(scrape: bytes) -> int:
    """Count the series of a scrape."""
    return sum(not line.startswith(b"#") for line in scrape.splitlines())


def resident_megabytes(pid: int | None = None) -> float:
    """Return the resident memory of a process, of this one by default."""
    pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
