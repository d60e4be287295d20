"""Which series a pod brings to a Prometheus, counted in scrapes of a real sidecar over a real journal.

What an engine and a rank bring is the difference of two scrapes:
    one engine of one rank                sidecar + engine + rank
    ... a second rank                     sidecar + engine + 2 ranks
    ... and a second engine of one rank   sidecar + 2 engines + 3 ranks
"""

import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scratch import scratch_journal
from benchmarks.sidecar_process import SidecarProcess
from nanwatch.journal.clock import boot_ns, clock_domain
from nanwatch.journal.folder import Folder
from nanwatch.journal.line import Labels, StartLine
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter

INTERVAL_SECONDS = 15  # of scrapes and of rules

# Prometheus writes these itself, for each target.
OF_A_TARGET = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
# What the level of a recorded name is for each of: in Kubernetes a pod is a host.
LEVELS = {
    "nanwatch_source": "rank",
    "nanwatch_replica": "engine",
    "nanwatch_peers": "engine",
    "nanwatch_host": "pod",
    "nanwatch_host_peers": "pod",
    "nanwatch_model": "model",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """Series by metric, of a sidecar alone, and of what it shows."""

    sidecar: Counter[str]
    engine: Counter[str]
    rank: Counter[str]

    @property
    def pod(self) -> Counter[str]:
        """A sidecar with one engine, of which one rank writes: the usual pod, however many GPUs it has."""
        return self.sidecar + self.engine + self.rank


@dataclass(frozen=True, slots=True)
class Series:
    """Series by metric that a pod brings, and that a model brings once."""

    scraped: Counter[str]
    recorded: Counter[str]
    recorded_once: Counter[str]

    @classmethod
    def of_pod(cls, counted: Counted, rules: str) -> "Series":
        """Add what Prometheus itself writes for the target, and what the rules of a file record."""
        recorded = recorded_by_level(rules)
        return cls(
            counted.pod + Counter(OF_A_TARGET),
            recorded["rank"] + recorded["engine"] + recorded["pod"],
            recorded["model"],
        )

    def of(self, pods: int, keep: str = ".*") -> int:
        """Count those of so many pods whose name a pattern fits whole."""
        return pods * fitting(self.scraped + self.recorded, keep) + fitting(self.recorded_once, keep)

    def samples_per_second(self, pods: int, keep: str = ".*") -> float:
        """Count a sample of each series for each interval."""
        return self.of(pods, keep) / INTERVAL_SECONDS


def count() -> Counted:
    """Count the series of a real sidecar, with more and more in its journal."""
    with scratch_journal() as journal, ExitStack() as stack:
        stack.enter_context(_source(journal, engine=0, rank=0))
        sidecar = stack.enter_context(SidecarProcess(journal))
        one = _scraped(sidecar)
        stack.enter_context(_source(journal, engine=0, rank=1))
        second_rank = _scraped(sidecar)
        stack.enter_context(_source(journal, engine=1, rank=0))
        second_engine = _scraped(sidecar)
    rank = second_rank - one
    engine = second_engine - second_rank - rank
    return Counted(one - engine - rank, engine, rank)


def recorded_by_level(rules: str) -> dict[str, Counter[str]]:
    """Return the recorded names of a rule file, by what there is one series of each for.

    Raises:
        ValueError: a name's level is not listed in `LEVELS`.
    """
    found: dict[str, Counter[str]] = {what: Counter() for what in LEVELS.values()}
    for name in re.findall(r"^ *- record: (\S+)$", rules, re.MULTILINE):
        level = name.partition(":")[0]
        if level not in LEVELS:
            raise ValueError(f"{name}: the level {level} is not known; LEVELS says what each is for")
        found[LEVELS[level]][name] += 1
    return found


def _source(journal: Path, *, engine: int, rank: int) -> ExitStack:
    """Begin a source that has counted nothing yet; closing the stack ends it."""
    labels = Labels("llama", str(engine), "vllm", "0", "vllm-7f9c-x2x", str(rank), f"GPU-{engine}-{rank}")
    versions = {"nanwatch": "0.1.0", "torch": "2.13.0", "vllm": "0.32.0"}
    start = StartLine(
        "a-life", 1, f"cuda:{rank}", versions, clock_domain(), boot_ns(), 0.0, Totals(), counting=rank == 0
    )
    writer = JournalWriter(Folder(journal), labels, start)
    writer.commit(Totals())
    stack = ExitStack()
    stack.callback(writer.close)
    return stack


def _scraped(sidecar: SidecarProcess) -> Counter[str]:
    """Return how many series each metric has in one scrape."""
    text = sidecar.scrape()[1].decode()
    return Counter(re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? \S+$", text, re.MULTILINE))


def fitting(names: Counter[str], pattern: str) -> int:
    """Count the series of the metrics whose name a pattern fits whole."""
    return sum(count for name, count in names.items() if re.fullmatch(pattern, name))
