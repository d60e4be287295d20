"""The opt-in liveness probe, run as kubelet would, against a real sidecar over a real journal.

A small server stands for the engine's own /health.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.engine import Engine
from tests.sidecar.running import Sidecar
from tests.tools import free_port, until

from .manifests import RESTART_ON_NAN, loaded, named, pod

COMMAND = named("vllm", pod(loaded(RESTART_ON_NAN / "liveness.yaml")))["livenessProbe"]["exec"]["command"]


def probe(engine_port: int, sidecar_port: int) -> tuple[int, str]:
    """Return the probe's status and what it says, with these ports in place of the manifests'."""
    python, option, script = COMMAND
    assert (python, option) == ("python3", "-c")
    for manifests, ours in ((":8000/", engine_port), (":10626/", sidecar_port)):
        assert script.count(manifests) == 1
        script = script.replace(manifests, f":{ours}/")
    done = subprocess.run(
        [sys.executable, option, script], capture_output=True, text=True, timeout=20, check=False
    )
    return done.returncode, done.stderr


@contextmanager
def engine_that_answers(status: int) -> Iterator[int]:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def healthy_engine() -> Iterator[int]:
    with engine_that_answers(200) as port:
        yield port


def test_five_corrupted_requests_and_one_in_a_hundred_are_too_many(
    journal: Path, healthy_engine: int
) -> None:
    with Engine(journal) as engine, Sidecar(journal) as sidecar:
        until(lambda: sidecar.get("/readyz").status_code == 200, "the source is seen")
        engine.serve(391)
        engine.corrupt("r1", "r2", "r3", "r4")
        assert probe(healthy_engine, sidecar.port) == (0, "")
        engine.corrupt("r5")  # the fifth of 396: one in 79
        status, why = probe(healthy_engine, sidecar.port)
        assert status == 1
        assert why.startswith("nanwatch: {")
        assert "5 of 396 requests were corrupted in the last 120 s" in why
        engine.serve(200)  # five of 596: less than one in a hundred
        assert probe(healthy_engine, sidecar.port) == (0, "")


def test_a_sidecar_that_is_away_is_no_reason_to_restart_the_engine(healthy_engine: int) -> None:
    assert probe(healthy_engine, free_port()) == (0, "")


def test_an_engine_that_is_ill_or_away_is_restarted_as_before(journal: Path) -> None:
    with Engine(journal), Sidecar(journal) as sidecar:
        with engine_that_answers(500) as ill:
            status, why = probe(ill, sidecar.port)
            assert status == 1
            assert why.startswith("engine: 500")
        status, why = probe(free_port(), sidecar.port)
        assert status == 1
        assert "refused" in why
