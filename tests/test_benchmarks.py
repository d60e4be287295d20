"""What the benchmarks say of themselves: the arithmetic behind a verdict, and that each can be named."""

import random
import subprocess
import sys
from collections import Counter
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.__main__ import ALL, main
from benchmarks.measure import Spread, take_turns
from benchmarks.scale import rise_over_last_half
from benchmarks.sidecar_process import corrupted_in, series_in
from nanwatch.journal.reader import JournalReader

ROOT = Path(__file__).parents[1]

SCRAPE = b"""# HELP corrupted_requests_total Requests.
# TYPE corrupted_requests_total counter
corrupted_requests_total{model_name="a"} 3.0
corrupted_requests_total{model_name="b"} 4.0
nanwatch_build_info{version="1"} 1.0
"""


@pytest.mark.parametrize(
    ("samples", "rise"),
    [
        ([9, 9, 1, 2, 3, 4], 2),
        ([1, 2, 3, 4, 5, 5, 5, 5], 0),
        ([0, 0, 0, 0, 5, 5, 90, 5, 5, 5], 0),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 4),
    ],
)
def test_memory_is_judged_by_the_slope_of_the_last_half(samples: list[float], rise: float) -> None:
    assert rise_over_last_half(samples) == rise


def test_a_scrape_is_read_as_prometheus_reads_it() -> None:
    assert (corrupted_in(SCRAPE), series_in(SCRAPE)) == (7, 3)


def test_the_interval_holds_the_true_median_19_times_of_20() -> None:
    """Whatever the distribution; here one with a long tail, whose median is 1."""
    assert Spread.of_median(range(1, 101)) == Spread(50.5, 40, 61)
    dice = random.Random(1)
    runs = [Spread.of_median(dice.lognormvariate(0, 1) for _ in range(100)) for _ in range(1000)]
    assert 935 <= sum(run.low <= 1 <= run.high for run in runs) <= 975


def test_in_turns_each_leads_as_often_as_the_others_and_comes_after_each_of_them() -> None:
    calls: list[str] = []
    names = ["a", "b", "c", "d"]
    turns = {name: (lambda name=name: calls.append(name)) for name in names}
    take_turns(turns, rounds=400, block_seconds=0.0, clock=iter(range(100_000)).__next__)
    blocks = calls[-400 * 4 * 3 :: 3]  # three calls each
    assert Counter(blocks[::4]) == dict.fromkeys(names, 100)
    after = Counter(pairwise(blocks))
    assert all(after[one, other] > 80 for one in names for other in names if one != other)


@pytest.mark.parametrize("name", ALL)
def test_every_benchmark_can_be_run_by_its_name(name: str) -> None:
    assert callable(import_module(f"benchmarks.{name}").main)


def test_the_gpus_runs_after_others_have_imported_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported without TRITON_INTERPRET, Triton compiles: without a GPU nothing would run then."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    script = "import triton.language\nfrom benchmarks.__main__ import main\nraise SystemExit(main(['gpu']))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cases right" in done.stdout


def test_a_benchmark_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "no benchmark speed; there are counting, observe" in capsys.readouterr().err


def test_many_sources_write_until_their_time_is_over(journal: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.writers", "--sources", "3", "--seconds", "0.3"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "ready\n"
    reader = JournalReader(journal)
    reader.poll()
    assert [source.corrupted_requests > 0 for source in reader.sources] == [True] * 3
    reader.close()
