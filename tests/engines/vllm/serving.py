"""`vllm serve` as people start it, with the planting plug-in beside nanwatch's, and its clients."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
READY_SECONDS = 400  # some 40 on a quiet machine
OPTIONS = {
    "--served-model-name": "tiny",
    "--load-format": "dummy",
    "--dtype": "float32",
    "--max-model-len": "256",
    "--max-num-seqs": "8",
    "--kv-cache-memory-bytes": "64M",
    "--host": "127.0.0.1",
}


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def plug_in(folder: Path, name: str) -> Path:
    """Make a plug-in of this folder known to vLLM: the metadata of a distribution, for PYTHONPATH."""
    metadata = folder / f"{name}-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\n{name} = tests.engines.vllm.{name}:register\n"
    )
    return folder


class Server:
    """A running `vllm serve`."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def wait_until_ready(self) -> None:
        """Wait for its port; fails with the end of its log."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if fetch(f"http://127.0.0.1:{self.port}/health") is not None:
                return
            time.sleep(0.3)
        raise AssertionError(f"vllm serve is not ready: {self.log.read_text()[-3000:]}")

    def ask(self, request_id: str, **parameters: Any) -> int:
        """Complete one prompt; returns the status, 0 where the connection broke."""
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body | parameters).encode(),
            {"Content-Type": "application/json", "X-Request-Id": request_id},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def ask_all(self, request_ids: Sequence[str]) -> dict[str, int]:
        """Ask for all at once, each from a client of its own."""
        answers: dict[str, int] = {}

        def ask(name: str) -> None:
            answers[name] = self.ask(name)

        threads = [threading.Thread(target=ask, args=(name,)) for name in request_ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers


@contextmanager
def serve(  # noqa: PLR0913  each is a part of the command or of its surroundings
    model: Path,
    place: Path,
    journal: Path,
    plans: Iterable[dict[str, Any]] = (),
    *,
    before: Sequence[str] = (),
    options: Sequence[str] = (),
    plug: str = "planting",
    **environment: str,
) -> Iterator[Server]:
    """Run `before vllm serve ...` and end it by SIGTERM, if it has not ended itself."""
    port, log = free_port(), place / "server.log"
    program = [
        str(Path(sys.executable).with_name("vllm")),
        "serve",
        str(model),
        "--enforce-eager",
        *chain(*OPTIONS.items()),
    ]
    path = os.pathsep.join(
        [str(plug_in(place / "plug-in", plug)), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    with log.open("w") as out:
        process = subprocess.Popen(
            [*before, *program, "--port", str(port), *options],
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
                "PYTHONPATH": path,
                "PLANTED": json.dumps(list(plans)),
                "NANWATCH_ENABLED": "1",
                "NANWATCH_JOURNAL": str(journal),
            }
            | environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
        server = Server(process, port, log)
        try:
            server.wait_until_ready()
            yield server
        finally:
            _end(process)


@contextmanager
def sidecar(journal: Path) -> Iterator[str]:
    """Run a sidecar over a journal; yields its address."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NANWATCH_")}
    environment |= {"NANWATCH_JOURNAL": str(journal), "NANWATCH_LISTEN": f"127.0.0.1:{port}"}
    process = subprocess.Popen([sys.executable, "-m", "nanwatch", "sidecar"], env=environment, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        while fetch(f"{address}/healthz") is None:
            assert process.poll() is None, "the sidecar ended"
            time.sleep(0.1)
        yield address
    finally:
        _end(process)


def fetch(address: str) -> str | None:
    """Return what is there, None where nobody answers."""
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310  our own server
            return str(answer.read().decode())
    except OSError:
        return None


def sample(metrics: str, name: str) -> float:
    """Return the sum of all series of one metric."""
    lines = [line for line in metrics.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
