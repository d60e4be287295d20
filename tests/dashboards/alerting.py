"""What stands around Prometheus: a webhook that alerts end at, Alertmanager, and DCGM's exporter."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import rmtree
from typing import Any

from tests.tools import as_nobody, free_port, give_to_nobody, program

Alert = dict[str, Any]


class Webhook:
    """Takes what Alertmanager posts, at `address`."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    @contextmanager
    def open(self) -> Iterator[str]:
        """Listen while this lasts; yields the address."""
        alerts = self.alerts

        class Handler(_Quiet):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                alerts.extend(json.loads(body)["alerts"])
                self.answer("")

        with _served(Handler) as address:
            yield address

    def names(self) -> set[str]:
        """Return the names of the alerts that have arrived as firing."""
        return {alert["labels"]["alertname"] for alert in self.alerts if alert["status"] == "firing"}


@contextmanager
def dcgm(*uuids: str) -> Iterator[str]:
    """Stand for DCGM's exporter on a host of these GPUs; yields its address."""
    lines = [_DCGM.format(number=number, uuid=uuid) for number, uuid in enumerate(uuids)]

    class Handler(_Quiet):
        def do_GET(self) -> None:
            self.answer(
                "# Stands for DCGM's exporter: same names and labels, made-up values.\n" + "".join(lines)
            )

    with _served(Handler) as address:
        yield address


_LABELS = 'gpu="{number}",UUID="{uuid}",device="nvidia{number}",modelName="none",Hostname="node-1"'
_DCGM = "".join(
    f"{name}{{{{{_LABELS}}}}} {value}\n"
    for name, value in (
        ("DCGM_FI_DEV_XID_ERRORS", 0),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 2),
    )
)


@contextmanager
def alertmanager(webhook: str) -> Iterator[str]:
    """Run a real Alertmanager that hands everything to the webhook at once; yields its address."""
    executable = program("prometheus-alertmanager", package="prometheus-alertmanager")
    folder = Path(tempfile.mkdtemp(prefix="alertmanager-"))
    config = {
        "route": {"receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "hook", "webhook_configs": [{"url": f"http://{webhook}/"}]}],
    }
    (folder / "alertmanager.yml").write_text(json.dumps(config), encoding="utf-8")
    give_to_nobody(folder)
    address = f"127.0.0.1:{free_port()}"
    options = [
        "--config.file=alertmanager.yml",
        "--storage.path=data",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    process = subprocess.Popen([*as_nobody(), executable, *options], cwd=folder)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(10)
        rmtree(folder)


class _Quiet(BaseHTTPRequestHandler):
    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's name
        """Say nothing."""


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(5)
