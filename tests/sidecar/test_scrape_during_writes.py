"""Eight engines write while two scrapers look, each a process or thread of its own."""

import subprocess
import sys
import threading
from pathlib import Path

import httpx

from .conftest import Metrics, parse
from .running import Sidecar

WRITERS, EVENTS = 8, 1000
ROOT = Path(__file__).parent.parent.parent

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.engine import Engine

folder, rank, events = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
with Engine(folder, rank=rank) as engine:
    sys.stdin.readline()
    for n in range(events):
        engine.corrupt(f"req-{rank}-{n}", finished=n % 2 == 0)
        engine.serve()
"""


def writer(journal: Path, rank: int) -> "subprocess.Popen[str]":
    arguments = [str(ROOT), str(journal), str(rank), str(EVENTS)]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdin=subprocess.PIPE, text=True)


def scrape_until(over: threading.Event, url: str, scrapes: list[Metrics]) -> None:
    with httpx.Client() as client:
        while not over.is_set():
            scrapes.append(parse(client.get(url).text))
        scrapes.append(parse(client.get(url).text))


def total(metrics: Metrics, name: str) -> float:
    return sum(value for _, value in metrics.get(name, []))


def counters(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (name, str(sorted(labels.items()))): value
        for name, samples in metrics.items()
        for labels, value in samples
        if name.endswith(("_total", "_bucket", "_count", "_sum"))
    }


def test_every_scrape_is_monotone_and_consistent_and_the_last_one_exact(journal: Path) -> None:
    """8 writers x 1,000 events, 2 scrapers: nothing falls, corrupted <= requests, 8,000 in the end."""
    writers = [writer(journal, rank) for rank in range(WRITERS)]
    over = threading.Event()
    seen: list[list[Metrics]] = [[], []]
    with Sidecar(journal) as sidecar:
        url = f"{sidecar.url}/metrics"
        scrapers = [threading.Thread(target=scrape_until, args=(over, url, one)) for one in seen]
        for scraper in scrapers:
            scraper.start()
        for process in writers:
            process.communicate("go\n", timeout=60)
        over.set()
        for scraper in scrapers:
            scraper.join(30)
    assert [process.returncode for process in writers] == [0] * WRITERS
    for scrapes in seen:
        assert len(scrapes) > 5
        assert all(
            total(scrape, "corrupted_requests_total") <= total(scrape, "nanwatch_requests_total")
            for scrape in scrapes
        )
        for before, after in zip(map(counters, scrapes), map(counters, scrapes[1:]), strict=False):
            assert all(after[series] >= value for series, value in before.items())
        assert total(scrapes[-1], "corrupted_requests_total") == WRITERS * EVENTS
        assert total(scrapes[-1], "nanwatch_requests_total") == 2 * WRITERS * EVENTS
