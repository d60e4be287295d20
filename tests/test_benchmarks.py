"""What the benchmarks say of themselves: the arithmetic behind a verdict, and that each can be named."""

import subprocess
import sys
from importlib import import_module

import pytest

from benchmarks.__main__ import ALL, main
from benchmarks.scale import rise_over_last_half
from benchmarks.sidecar_process import corrupted_in, series_in

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


@pytest.mark.parametrize("name", ALL)
def test_every_benchmark_can_be_run_by_its_name(name: str) -> None:
    assert callable(import_module(f"benchmarks.{name}").main)


def test_a_benchmark_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "no benchmark speed; there are counting, observe" in capsys.readouterr().err


def test_many_sources_write_until_their_time_is_over(journal: object) -> None:
    command = [sys.executable, "-m", "benchmarks.writers", "--sources", "2", "--seconds", "0.1"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "ready\n"
