"""docs/scaling.md says what its script prints, and what it tells people to drop is needed by no rule."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from benchmarks import scaling, series
from tests.dashboards.promql import exported, metrics_in
from tests.tools import program

PAGE = scaling.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def counted() -> series.Counted:
    return series.count()


def test_the_page_holds_what_the_script_prints() -> None:
    """Another metric, another rule? `python -m benchmarks.scaling --write` writes it anew."""
    assert scaling.with_blocks(PAGE, scaling.blocks()) == PAGE


def test_the_series_are_those_of_the_table_of_metrics(counted: series.Counted) -> None:
    """Worked out by hand; a histogram is its twelve bounds, +Inf, a sum and a count."""
    assert counted.sidecar.total() == 3  # fail_fast_enabled, journal_problems, build_info
    assert counted.engine.total() == 5 + 15  # two of requests, trips, disagreements, drills; the delay
    assert counted.rank.total() == 9 + 6 + 3  # counters, reasons of dropped steps, two gauges and the info
    assert set(counted.pod) == exported()


def test_a_pod_is_counted_with_its_target_and_what_is_recorded_for_it() -> None:
    rules = (
        "  - record: nanwatch_replica:a:b\n  - record: nanwatch_model:c:d\n  - record: nanwatch_source:e:f\n"
    )
    counted = series.Counted(Counter(s=3), Counter(e=2, more=1), Counter(r=4))
    found = series.Series.of_pod(counted, rules)
    assert found.scraped.total() == 3 + 3 + 4 + 5
    assert found.of(1) == 15 + 2 + 1
    assert found.of(100) == 1700 + 1
    assert found.of(100, "e|nanwatch_model:.+") == 200 + 1
    assert found.samples_per_second(100, "e") == pytest.approx(200 / 15)


def test_a_recorded_level_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="nanwatch_planet:x: the level nanwatch_planet is not known"):
        series.recorded_by_level("- record: nanwatch_planet:x\n")


@pytest.mark.parametrize(
    ("value", "shown"), [(185_000, "180 kB"), (999_600, "1 MB"), (1.86e9, "1.9 GB"), (105.4e9, "110 GB")]
)
def test_bytes_are_shown_with_two_digits(value: float, shown: str) -> None:
    assert scaling._bytes(value) == shown


def test_no_rule_needs_what_is_dropped_at_the_scrape() -> None:
    rules = yaml.safe_load(scaling.RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
    needed = set().union(*(metrics_in(rule["expr"]) for rule in rules))
    dropped = {name for name in exported() if re.fullmatch(scaling.DROP_AT_SCRAPE, name)}
    assert len(dropped) == 6
    assert not dropped & needed


def test_a_page_without_a_place_for_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="the page holds 0 blocks <!-- pods -->"):
        scaling.with_blocks("<!-- series -->\n<!-- end -->", {"pods": ""})


@pytest.mark.prometheus
def test_promtool_accepts_the_pages_examples(tmp_path: Path) -> None:
    drop, keep, federate = (
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    )
    job: dict[str, Any] = {
        "job_name": "nanwatch",
        "static_configs": [{"targets": ["localhost:10626"]}],
        **drop,
    }
    config = {"scrape_configs": [job, *federate["scrape_configs"]], **keep}
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    done = subprocess.run(
        [program("promtool"), "check", "config", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
