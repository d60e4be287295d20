"""What grows with load, and what does not: `python -m benchmarks.scale`, about a minute and a half.

    sources    64 write at once, four processes of 16 (writers.py): scrape time, and delay of one more source
    burst      2,000 corrupted requests a second, for 30 s (`--full`: 60): memory, file, scrape time
    million    requests through one probe, 3 of each 250 corrupted: series, memory

Memory is judged by its slope: a line through the last half of the samples (the median of the slopes of all
pairs), and how much it rises in that half. The tables that remember finished ids (65,536) and listed requests
(10,000) are filled before: until they are full memory grows by design. The engine's side is this process, and
a megabyte is 10^6 bytes.
"""

import argparse
import itertools
import logging
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.measure import AtMost, Line, Spread, print_table
from benchmarks.scratch import scratch_journal
from benchmarks.sidecar_process import SidecarProcess, corrupted_in, resident_megabytes, series_in
from nanwatch import NanProbe
from nanwatch.journal.kept import NEWEST
from nanwatch.lifetimes import MOST_FINISHED

PROCESSES, SOURCES_EACH = 4, 16
PER_SECOND, PER_STEP = 2000, 20
MILLION = 1_000_000
STEP_OF_MILLION, CORRUPTED_OF_STEP = 250, 3
SAMPLE_SECONDS = 0.25
SCRAPE_MILLISECONDS, VISIBLE_MILLISECONDS = AtMost(10), AtMost(20)
FILE_MEGABYTES, RISE_MEGABYTES = AtMost(16), AtMost(1)
NOTHING = AtMost(0)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--full", action="store_true", help="half a minute of sources, a minute of the burst")
    full = parser.parse_args(arguments).full
    stories: dict[str, Callable[[Path], Iterator[Line]]] = {
        "64 sources write at once": lambda folder: _sources(folder, 30 if full else 10),
        "2,000 corrupted requests a second": lambda folder: _burst(folder, 60 if full else 30),
        "a million requests through one probe": lambda folder: _many(folder, MILLION),
    }
    for title, story in stories.items():
        with _quietly(), scratch_journal() as folder:
            print_table(title, list(story(folder)))


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out the line that each corrupted request would be in the log."""
    logger = logging.getLogger("nanwatch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _sources(folder: Path, seconds: float) -> Iterator[Line]:
    with NanProbe(model_name="one more", rank="64") as probe, SidecarProcess(folder) as sidecar:
        sidecar.seconds_until_ready()
        with _writers(seconds + 5):
            sidecar.scrape()
            delays, ends = [], time.monotonic() + seconds
            for number in itertools.count(1):
                delays.append(_milliseconds_until_visible(probe, sidecar, number))
                if time.monotonic() > ends:
                    break
            scrapes = [sidecar.scrape()[0] for _ in range(200)]
            series = series_in(sidecar.scrape()[1])
            resident = sidecar.resident_megabytes()
    yield _worst("observe to visible, milliseconds, p99 (p50 to longest)", delays, VISIBLE_MILLISECONDS)
    yield _worst("scrape, milliseconds, p99 (p50 to longest)", scrapes)
    yield _one("series", series)
    yield _one("sidecar resident, MB", resident)


@contextmanager
def _writers(seconds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.writers", "--sources", str(SOURCES_EACH)]
    each = [
        [*command, "--first", str(first * SOURCES_EACH), "--seconds", str(seconds)]
        for first in range(PROCESSES)
    ]
    running = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in each]  # noqa: S603  our own
    try:
        for process in running:
            assert process.stdout is not None  # noqa: S101  for the type checker
            process.stdout.readline()  # "ready"
        yield
    finally:
        for process in running:
            process.terminate()
            process.communicate(timeout=20)


def _milliseconds_until_visible(probe: NanProbe, sidecar: SidecarProcess, number: int) -> float:
    """Corrupt one request of the source that is watched, and scrape until its counter shows it."""
    bad = torch.ones(1, dtype=torch.int32)
    begin = time.perf_counter()
    probe.observe_counts(bad, [f"watched-{number}"])
    while _of_watched(sidecar.scrape()[1]) < number:
        pass
    taken = (time.perf_counter() - begin) * 1e3
    time.sleep(0.01)
    return taken


def _of_watched(scrape: bytes) -> int:
    return corrupted_in(b"\n".join(line for line in scrape.splitlines() if b'model_name="one more"' in line))


def _burst(folder: Path, seconds: float) -> Iterator[Line]:
    bad = torch.ones(PER_STEP, dtype=torch.int32)
    requests = int(seconds * PER_SECOND)

    def corrupt(probe: NanProbe) -> None:
        began = time.monotonic()
        for first in range(0, requests, PER_STEP):
            ids = [f"request-{first + i}" for i in range(PER_STEP)]
            probe.observe_counts(bad, ids)
            probe.finish(ids)
            time.sleep(max(0.0, began + (first + PER_STEP) / PER_SECOND - time.monotonic()))

    yield from _watched_under(corrupt, folder, expected=requests)


def _many(folder: Path, requests: int) -> Iterator[Line]:
    clean, bad = (torch.zeros(STEP_OF_MILLION, dtype=torch.int32) for _ in range(2))
    bad[:CORRUPTED_OF_STEP] = 3

    def serve(probe: NanProbe) -> None:
        for first in range(0, requests, STEP_OF_MILLION):
            ids = [f"request-{first + i}" for i in range(STEP_OF_MILLION)]
            probe.observe_counts(bad, ids)
            probe.observe_counts(clean, ids)
            probe.finish(ids)
            if first % (20 * STEP_OF_MILLION) == 0:
                probe.flush()  # an engine's steps take longer than this loop's

    expected = CORRUPTED_OF_STEP * (requests // STEP_OF_MILLION)
    began = time.monotonic()
    yield from _watched_under(serve, folder, expected=expected)
    yield _one(f"seconds for {requests} requests", time.monotonic() - began)


def _watched_under(load: Callable[[NanProbe], None], folder: Path, expected: int) -> Iterator[Line]:
    """Put a load on one probe, watch memory, file and scrapes meanwhile, and count afterwards."""
    with NanProbe() as probe, SidecarProcess(folder) as sidecar:
        sidecar.seconds_until_ready()
        filled = _fill(probe)
        expected += filled
        _counted(sidecar, filled)
        series = series_in(sidecar.scrape()[1])
        watch = _Watch(sidecar, folder)
        with watch:
            load(probe)
        probe.flush(30)
        watch.sample()
        missing = expected - _counted(sidecar, expected)
        more_series = series_in(sidecar.scrape()[1]) - series
    yield _one(f"missing of {expected} corrupted requests", missing, NOTHING)
    yield _one("new series", more_series, NOTHING)
    yield _worst("scrape, milliseconds, p99 (p50 to longest)", watch.scrapes, SCRAPE_MILLISECONDS)
    yield _one("largest journal file, MB", watch.largest_file, FILE_MEGABYTES)
    yield _rise("engine's side", watch.engine)
    yield _rise("sidecar", watch.sidecar)
    yield _one("sidecar resident at the end, MB", watch.sidecar[-1])


def _fill(probe: NanProbe) -> int:
    """Finish as many requests as a probe remembers, and corrupt as many as are listed; returns how many."""
    bad = torch.ones(STEP_OF_MILLION, dtype=torch.int32)
    corrupted = 0
    for first in range(0, MOST_FINISHED + STEP_OF_MILLION, STEP_OF_MILLION):
        ids = [f"filling-{first + i}" for i in range(STEP_OF_MILLION)]
        is_bad = corrupted < 2 * NEWEST
        probe.observe_counts(bad if is_bad else torch.zeros_like(bad), ids)
        probe.finish(ids)
        corrupted += STEP_OF_MILLION * is_bad
        if first % (20 * STEP_OF_MILLION) == 0:
            probe.flush()
    probe.flush(30)
    return corrupted


class _Watch:
    """Samples memory, file and one scrape every SAMPLE_SECONDS, on a thread of its own."""

    def __init__(self, sidecar: SidecarProcess, folder: Path) -> None:
        self._sidecar, self._folder = sidecar, folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.scrapes: list[float] = []
        self.engine: list[float] = []
        self.sidecar: list[float] = []
        self.largest_file = 0.0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        """Look once."""
        self.scrapes.append(self._sidecar.scrape()[0])
        self.engine.append(resident_megabytes())
        self.sidecar.append(self._sidecar.resident_megabytes())
        sizes = (file.stat().st_size / 1e6 for file in self._folder.glob("*.jsonl"))
        self.largest_file = max(self.largest_file, *sizes)


def _counted(sidecar: SidecarProcess, expected: int) -> int:
    """Return the counter once it has come to rest where it should, or after 5 s."""
    deadline = time.monotonic() + 5
    while (counted := corrupted_in(sidecar.scrape()[1])) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return counted


def rise_over_last_half(samples: Sequence[float]) -> float:
    """Return by how much a line through the last half of equally spaced samples rises in that half.

    The slope is the median of those of all pairs, so that a few outliers do not tilt it: [9, 9, 1, 2, 3, 4]
    -> the last half is [2, 3, 4], the slope 1, the rise 2.
    """
    half = samples[len(samples) // 2 :]
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(half), 2)]
    return statistics.median(slopes) * (len(half) - 1)


def _rise(who: str, samples: Sequence[float]) -> Line:
    rise = rise_over_last_half(samples)
    return _one(f"{who}: rise of resident memory in the last half, MB", rise, RISE_MEGABYTES)


def _worst(what: str, values: Sequence[float], goal: AtMost | None = None) -> Line:
    cut = statistics.quantiles(values, n=100, method="inclusive")
    return Line(what, Spread(cut[98], cut[49], max(values)), goal)


def _one(what: str, value: float, goal: AtMost | None = None) -> Line:
    return Line(what, Spread(value, value, value), goal)


if __name__ == "__main__":
    main(sys.argv[1:])
