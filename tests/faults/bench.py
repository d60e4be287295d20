"""A probe, a real sidecar and a fault between them; what is logged, and what steps cost meanwhile."""

import logging
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nanwatch import NanProbe
from tests.seen import Seen, read
from tests.sidecar.running import Sidecar

CLEAN = torch.zeros(8, 32)
BAD = torch.full((1, 32), float("nan"))
IDS = [f"steady-{i}" for i in range(8)]
HEALS_WITHIN_SECONDS = 20.0


@dataclass
class Bench:
    """One engine in this process, one journal, one sidecar."""

    journal: Path
    probe: NanProbe
    sidecar: Sidecar
    log: list[str] = field(default_factory=list)
    planted: int = 0

    def plant(self, requests: int = 1) -> None:
        """Observe corrupted requests without waiting for anything."""
        for _ in range(requests):
            self.planted += 1
            self.probe.observe(BAD, [f"planted-{self.planted}"])
            self.probe.finish([f"planted-{self.planted}"])

    def step_microseconds(self, steps: int = 400) -> float:
        """Return the median of one clean observe, with a pause for the threads every few."""
        taken = []
        for step in range(steps):
            start = time.perf_counter_ns()
            self.probe.observe(CLEAN, IDS)
            taken.append(time.perf_counter_ns() - start)
            if step % 20 == 0:
                time.sleep(0.002)
        return statistics.median(taken) / 1e3

    def seen(self) -> Seen:
        return read(self.journal, beside_problems=True)

    def readyz(self) -> str:
        return str(self.sidecar.get("/readyz").text)

    def counter(self) -> int:
        lines = self.sidecar.get("/metrics").text.splitlines()
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in lines
            if line.startswith("corrupted_requests_total{")
        )

    def eventually(self, what: Callable[[], object], seconds: float = HEALS_WITHIN_SECONDS) -> None:
        """Wait until something holds, and say what did not."""
        deadline = time.monotonic() + seconds
        while not (held := what()):
            assert time.monotonic() < deadline, (
                f"{what.__name__} is {held!r} after {seconds} s: planted {self.planted}, "
                f"written and shown {self.written_and_shown()}, readyz {self.readyz()}"
            )
            time.sleep(0.02)

    def all_counted(self) -> bool:
        """Whether journal and sidecar hold exactly what was planted."""
        return self.written_and_shown() == (self.planted, self.planted)

    def written_and_shown(self) -> tuple[int, int]:
        """Return the corrupted requests of the journal and of /metrics."""
        return self.seen().corrupted, self.counter()


@contextmanager
def bench(journal: Path) -> Iterator[Bench]:
    """Start everything; NANWATCH_JOURNAL names `journal` already."""
    logger = logging.getLogger("nanwatch")
    log: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        with NanProbe() as probe, Sidecar(journal) as sidecar:
            yield Bench(journal, probe, sidecar, log)
    finally:
        logger.removeHandler(handler)


@contextmanager
def small_disk(at: Path, size: str = "256k") -> Iterator[Path]:
    """Mount a tmpfs of its own at a new folder."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def can_mount(at: Path) -> bool:
    """Whether this process may mount anything."""
    try:
        with small_disk(at):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False
    finally:
        if at.exists():
            at.rmdir()
