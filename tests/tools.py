"""Programs that tests use where they are installed; `.ci/run` installs them."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import httpx
import pytest

NOBODY = 65534


def program(name: str, package: str = "prometheus") -> str:
    """Return the path of a program, or skip the test and say what is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on the PATH (Debian: apt-get install {package})")
    return path


def lint_metrics(text: str) -> str:
    """Return what `promtool check metrics` says of a scrape in the text format; nothing if it is well."""
    promtool = program("promtool")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout + done.stderr


def free_port() -> int:
    """Return a port of the loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def until(holds: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait until something holds; fail with `what` was waited for."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout} s in vain: {what}")
        time.sleep(0.1)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody has fetched yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


class Prometheus:
    """A real Prometheus, unprivileged on the loopback, that scrapes and evaluates each second.

    `target` is the sidecar, `others` are more targets by their job. It is ready in half a second, but
    its first scrape comes some five seconds after the start: share it among tests.
    """

    def __init__(
        self,
        target: str,
        others: Mapping[str, str] = MappingProxyType({}),
        *,
        rules: Path | None = None,
        alertmanager: str | None = None,
    ) -> None:
        self._program = program("prometheus")
        self._folder = Path(tempfile.mkdtemp(prefix="prometheus-"))
        self._port = free_port()
        self._targets = {"nanwatch": target, **others}
        self._write_config(rules, alertmanager)
        self._process = subprocess.Popen(
            [*as_nobody(), *self._command()],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}/api/v1", timeout=5)

    def __enter__(self) -> Self:
        until(self._is_ready, "Prometheus is ready")
        until(lambda: len(self.query("up")) == len(self._targets), "Prometheus has scraped once")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.communicate(timeout=10)
        shutil.rmtree(self._folder)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return an instant query's labels and values."""
        found = self.ask("/query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def value(self, expression: str) -> float | None:
        """Return the value of a query for one series; None while there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def exemplars(self, selector: str) -> list[dict[str, str]]:
        """Return the labels of a counter's exemplars of the last minute."""
        now = time.time()
        found = self.ask("/query_exemplars", query=selector, start=str(now - 60), end=str(now + 60))
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]

    def target(self) -> dict[str, Any]:
        """Return what Prometheus says of its one target: health, last error, last scrape."""
        (target,) = self.ask("/targets")["activeTargets"]
        found: dict[str, Any] = target
        return found

    def wait_for_scrape(self) -> dict[str, Any]:
        """Wait for a scrape that begins after this call; returns the target after it."""
        called = datetime.now(UTC)
        until(lambda: datetime.fromisoformat(self.target()["lastScrape"]) > called, "the next scrape")
        return self.target()

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of Prometheus' API; fail on what it calls an error."""
        answer = self._client.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._process.stderr and self._process.stderr.read()
        try:
            return self._client.get(f"http://127.0.0.1:{self._port}/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _write_config(self, rules: Path | None, alertmanager: str | None) -> None:
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]}
                for job, target in self._targets.items()
            ],
        }
        if rules is not None:
            shutil.copyfile(rules, self._folder / "rules.yml")
            config["rule_files"] = ["rules.yml"]
        if alertmanager is not None:
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        (self._folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        give_to_nobody(self._folder)

    def _command(self) -> list[str]:
        return [
            self._program,
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]


def as_nobody() -> list[str]:
    """Return what to put before a command, so that it does not run as root."""
    if os.geteuid() != 0:
        return []
    return [program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def give_to_nobody(folder: Path) -> None:
    """Let a command that runs as nobody own a folder and what is in it."""
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, NOBODY, NOBODY)
