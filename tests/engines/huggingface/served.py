"""`nanwatch run -- transformers serve` as a process of its own, and its clients over HTTP."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from nanwatch.journal.line import CorruptedRequest
from tests.seen import Seen, read

START_SECONDS = 150.0
SEEN_SECONDS = 60.0
CONTINUOUS = (
    *("--continuous-batching", "--cb-num-blocks", "512", "--cb-block-size", "16"),
    *("--cb-max-batch-tokens", "256"),
)


@dataclass
class Server:
    """A server that runs, and the journal of its process."""

    url: str
    journal: Path

    def post(self, path: str, request_id: str | None, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60.0, headers=self.headers(request_id))

    def complete(self, request_id: str | None, prompt: str, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", request_id, prompt=prompt, **{"max_tokens": 4, **body})

    def stream(self, request_id: str, prompt: str, **body: Any) -> Any:
        return httpx.stream(
            "POST",
            f"{self.url}/v1/completions",
            json={"prompt": prompt, "stream": True, "max_tokens": 4, **body},
            headers=self.headers(request_id),
            timeout=60.0,
        )

    def headers(self, request_id: str | None) -> dict[str, str]:
        return {} if request_id is None else {"X-Request-Id": request_id}

    def seen(self) -> Seen:
        return read(self.journal)

    def finished(self, request_id: str) -> CorruptedRequest:
        """Wait until this corrupted request has been written with its end."""
        deadline = time.monotonic() + SEEN_SECONDS
        while True:
            found = [request for request in self.seen().requests if request.request_id == request_id]
            if found and found[0].finished:
                (request,) = found
                return request
            assert time.monotonic() < deadline, f"{request_id} is not among {self.seen().requests}"
            time.sleep(0.05)


Process = subprocess.Popen[bytes]


def start(folder: Path, home: Path, flags: tuple[str, ...]) -> Process:
    """Start it on a model; its log and its journal are in `home`."""
    server = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder)]
    command = [sys.executable, "-m", "nanwatch", "run", "--", *server]
    env = {**os.environ, "NANWATCH_JOURNAL": str(home / "journal")}
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, *flags, "--device", "cpu", "--port", "0"],
            env={**env, "HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=log,
        )


def end(process: Process) -> None:
    """End `nanwatch run`, which passes SIGTERM on; killed, it would leave its server running."""
    process.terminate()
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def url_of(process: Process, log: Path) -> str:
    """Wait until the server says its address."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"running on (http://\S+)", log.read_text(encoding="utf-8"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"the server did not start: {log.read_text(encoding='utf-8')}")
