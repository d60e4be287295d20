"""Rounds of SIGKILL at a random moment, and what has to hold after each.

    returned is a subset of journal, which is a subset of observed
    the counter on /metrics equals the distinct requests in the journal
Ids are of one round only, and a round has far fewer than the journal keeps, so the sets are exact.
"""

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import engine
from tests.seen import read
from tests.sidecar.running import Sidecar

_COUNTER = re.compile(r"^corrupted_requests_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Tally:
    """What all rounds came to."""

    rounds: int = 0
    engine_kills: int = 0
    fail_fast_rounds: int = 0
    sidecar_kills: int = 0
    observed: int = 0
    returned: int = 0
    journal: int = 0
    broken: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Return the tally as a table in Markdown."""
        rows = [(name.replace("_", " "), getattr(self, name)) for name in self.__slots__ if name != "broken"]
        rows.append(("broken promises", len(self.broken)))
        return "\n".join(
            ["| what | count |", "|---|---|", *(f"| {name} | {count} |" for name, count in rows)]
        )


def run_rounds(folder: Path, rounds: int, seed: int) -> Tally:
    """Run and check `rounds` rounds in a journal under `folder`."""
    ordeal = Ordeal(folder, seed)
    try:
        for number in range(rounds):
            ordeal.round(number)
    finally:
        _kill(ordeal.sidecar)
    return ordeal.tally


class Ordeal:
    """One journal, one sidecar after the other, one engine after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._journal = folder / "journal"
        os.environ["NANWATCH_JOURNAL"] = str(self._journal)
        self._choose = random.Random(seed)
        self.sidecar = Sidecar(self._journal)
        self.tally = Tally()

    def round(self, number: int) -> None:
        """Start an engine, kill it, perhaps the sidecar too, and check."""
        before = read(self._journal).corrupted if self._journal.exists() else 0
        home = self._folder / f"round-{number}"
        home.mkdir()
        fail_fast = self._choose.random() < 0.4
        with _forked_engine(home, f"round{number}", self._choose.randrange(1 << 30), fail_fast=fail_fast):
            time.sleep(self._choose.uniform(0.02, 0.6))
            if self._choose.random() < 0.5:
                self._kill_sidecar()
        self.tally.rounds += 1
        self.tally.engine_kills += 1
        self.tally.fail_fast_rounds += fail_fast
        self._check(number, home, before)

    def _kill_sidecar(self) -> None:
        _kill(self.sidecar)
        self.tally.sidecar_kills += 1
        time.sleep(self._choose.uniform(0, 0.2))
        self.sidecar = Sidecar(self._journal)

    def _check(self, number: int, home: Path, before: int) -> None:
        seen, counter = read(self._journal), _counter(self.sidecar)
        observed, returned = (_diary(home / kind) for kind in ("observed", "returned"))
        written = [r.request_id for r in seen.requests if r.request_id.startswith(f"round{number}-")]
        promises = {
            "returned is a subset of journal": returned <= set(written),
            "journal is a subset of observed": set(written) <= observed,
            "no request stands twice": len(written) == len(set(written)),
            "the total equals the distinct requests": seen.corrupted - before == len(written),
            "the counter equals the journal": counter == seen.corrupted,
        }
        self.tally.broken += [f"round {number}: {promise}" for promise, held in promises.items() if not held]
        self.tally.observed += len(observed)
        self.tally.returned += len(returned)
        self.tally.journal += len(written)


@contextmanager
def _forked_engine(home: Path, name: str, seed: int, *, fail_fast: bool) -> Iterator[None]:
    """Fork an engine (torch is imported already), and kill it at the end."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.environ["NANWATCH_FAIL_FAST"] = "1" if fail_fast else "0"
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            engine.run(home, name, seed)
        os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _diary(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return set(text[: text.rfind("\n") + 1].split())


def _counter(sidecar: Sidecar) -> int:
    """Return corrupted_requests_total as a scrape shows it, 0 where there is no series yet."""
    found = _COUNTER.search(sidecar.get("/metrics").text)
    return int(float(found[1])) if found else 0


def _kill(sidecar: Sidecar) -> None:
    sidecar.process.kill()
    with sidecar:
        sidecar.wait(10)
