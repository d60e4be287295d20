"""The PrometheusRule is rules.yml, and a script puts another runbook's address in."""

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from dashboards import build, prometheus_rule


def test_the_committed_file_is_what_the_script_makes_of_the_rules() -> None:
    """Changed rules.yml? `make dashboard` writes it anew."""
    text = prometheus_rule.FILE.read_text(encoding="utf-8")
    assert text == prometheus_rule.text()
    assert yaml.safe_load(text)["spec"] == yaml.safe_load(prometheus_rule.RULES.read_text(encoding="utf-8"))


def test_the_runbooks_address_is_put_into_every_alert(tmp_path: Path) -> None:
    wiki, file = "https://wiki.example/nanwatch.md", tmp_path / "rules.yaml"
    prometheus_rule.main(["--runbook", wiki, "--output", str(file)])
    (group,) = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["groups"]
    alerts = [rule for rule in group["rules"] if "alert" in rule]
    assert alerts
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"{wiki}#{rule['alert'].lower()}"
    assert build.RUNBOOK not in file.read_text(encoding="utf-8")


def test_it_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    prometheus_rule.main(["--output", "-"])
    assert capsys.readouterr().out == prometheus_rule.text()
