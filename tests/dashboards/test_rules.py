"""The rules: promtool accepts them, their scenarios come true, and each alert leads to what to do."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dashboards import build
from tests.tools import program

from .promql import FOREIGN, exported, metrics_in

FOLDER = build.FILE.parent
RULES_FILE, TESTS_FILE = FOLDER / "rules.yml", FOLDER / "rules_test.yml"
RUNBOOK = (FOLDER / "runbook.md").read_text(encoding="utf-8")

Rule = dict[str, Any]


def rules() -> list[Rule]:
    (group,) = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
    found: list[Rule] = group["rules"]
    return found


ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def named(rule: Rule) -> str:
    return "-".join(filter(None, (rule["alert"], rule["labels"].get("cause"), rule["labels"]["severity"])))


every_alert = pytest.mark.parametrize("alert", ALERTS, ids=named)


@pytest.mark.prometheus
def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", RULES_FILE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_each_scenario_fires_what_it_should_and_nothing_else() -> None:
    done = promtool("test", "rules", TESTS_FILE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_metrics_are_the_sidecars_or_recorded_before() -> None:
    """A rule sees only what a rule above it has recorded in the same turn."""
    recorded: set[str] = set()
    for rule in rules():
        assert metrics_in(rule["expr"]) <= exported() | FOREIGN | recorded
        recorded |= {rule["record"]} if "record" in rule else set()


def test_nothing_is_recorded_in_vain() -> None:
    """The two ratios are for people and dashboards; the rest is used by an alert or another rule."""
    used = set().union(*(metrics_in(rule["expr"]) for rule in rules()))
    assert RECORDED - used == {"nanwatch_model:corrupted_requests:ratio5m"}


@every_alert
def test_an_alert_says_what_it_is_and_where_to_read_on(alert: Rule) -> None:
    assert alert["labels"]["severity"] in {"warning", "critical"}
    summary, description = alert["annotations"]["summary"], alert["annotations"]["description"]
    assert "{{" in summary
    assert len(description) > len(summary)
    assert alert["annotations"]["runbook_url"] == f"{build.RUNBOOK}#{alert['alert'].lower()}"


@every_alert
def test_an_alert_has_its_section_in_the_runbook(alert: Rule) -> None:
    section = section_of(alert["alert"])
    for answer in ("**Means.**", "**Look at.**", "**Do now.**", "**After.**"):
        if alert["alert"] != "NanwatchBlind" or answer != "**Look at.**":  # a column of its table
            assert answer in section
    if cause := alert["labels"].get("cause"):
        assert f"| {cause} |" in section


def test_no_range_is_shorter_than_five_scrapes_of_a_minute() -> None:
    ranges = [found for rule in rules() for found in re.findall(r"\[(.*?)\]", rule["expr"])]
    assert set(ranges) == {"5m", "15m", "1h"}


@every_alert
def test_a_scenario_makes_the_alert_fire(alert: Rule) -> None:
    """By name, and by cause or severity where one name has several rules."""
    expected = re.findall(r"\{alertname=[^}]*\}", TESTS_FILE.read_text(encoding="utf-8"))
    siblings = [rule for rule in ALERTS if rule["alert"] == alert["alert"]]
    key = "cause" if "cause" in alert["labels"] else "severity"
    asked = f'{key}="{alert["labels"][key]}"' if len(siblings) > 1 else ""
    firing = [labels for labels in expected if f'"{alert["alert"]}"' in labels and asked in labels]
    assert firing or (asked and f"{key}: {alert['labels'][key]}" in TESTS_FILE.read_text(encoding="utf-8"))


def test_the_runbook_names_only_what_is_there() -> None:
    """Its metrics, and every alert that it mentions."""
    metrics = set(re.findall(r"\b(?:corrupted_requests_total|nanwatch_[a-z]\w*)", RUNBOOK))
    assert metrics <= exported()
    assert set(re.findall(r"\bNanwatch[A-Z]\w+", RUNBOOK)) == {rule["alert"] for rule in ALERTS}


def section_of(alert: str) -> str:
    """Return the text below an alert's heading."""
    _, _, rest = RUNBOOK.partition(f"\n## {alert}\n")
    return rest.partition("\n## ")[0]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
