"""A real Prometheus and Alertmanager over a real sidecar and a real journal.

Two replicas of two ranks each are there, so that a join that is many-to-many would show.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import pytest

from dashboards import build
from nanwatch import drill
from tests.sidecar.running import Sidecar
from tests.tools import Prometheus, until

from .alerting import Webhook, alertmanager, dcgm
from .fleet import Fleet

pytestmark = pytest.mark.prometheus

DASHBOARD: dict[str, Any] = json.loads(build.FILE.read_text(encoding="utf-8"))
TARGETS = [
    (f"{panel['title']} {target['refId']}", target)
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", [])
]
LABELS = [one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]

# What Grafana puts in for its own variables, for the last minute of a scrape each second.
PUT_IN = {
    "$__rate_interval": "10s",
    "$__interval": "1s",
    "$__range": "1m",
    "$model_name": "llama",
    "$engine": ".*",
}


@dataclass(frozen=True)
class Seen:
    """What was seen, and the Prometheus that saw it."""

    prometheus: Prometheus
    webhook: Webhook
    fleet: Fleet
    alerts_in_health: list[Any] = field(default_factory=list)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Serve in health for a while, then let three requests turn bad and wait for the alert."""
    journal = tmp_path_factory.mktemp("fleet") / "journal"
    webhook = Webhook()
    with ExitStack() as stack:
        manager = stack.enter_context(alertmanager(stack.enter_context(webhook.open())))
        fleet = Fleet(journal)
        stack.enter_context(fleet.busy())
        sidecar = stack.enter_context(Sidecar(journal))
        others = {"dcgm": stack.enter_context(dcgm("GPU-0", "GPU-1"))}
        prometheus = stack.enter_context(
            Prometheus(
                f"127.0.0.1:{sidecar.port}",
                others,
                rules=build.FILE.with_name("rules.yml"),
                alertmanager=manager,
            )
        )
        ratio = "nanwatch_replica:corrupted_requests:ratio5m"
        until(lambda: len(prometheus.query(ratio)) == 2, "both replicas have a ratio")
        found = Seen(prometheus, webhook, fleet, prometheus.query("ALERTS"))
        fleet.corrupt("cmpl-first", "cmpl-second", "cmpl-third")
        until(lambda: bool(webhook.names()), "the alert has reached the webhook")
        # Subqueries look at whole seconds, which may lie just before the scrape that showed it.
        until(lambda: bool(prometheus.query("corrupted_requests_total offset 2s > 0")), "two seconds passed")
        yield found


def test_no_alert_fires_or_waits_in_health(seen: Seen) -> None:
    assert seen.alerts_in_health == []


def test_corruption_reaches_the_webhook_and_says_what_to_do(seen: Seen) -> None:
    """Three requests among many are a warning, and the only one."""
    assert seen.webhook.names() - {"NanwatchDrill"} == {"NanwatchCorruptedRequests"}
    alert = seen.webhook.alerts[0]
    labels, annotations = alert["labels"], alert["annotations"]
    assert (labels["severity"], labels["model_name"], labels["replica"]) == ("warning", "llama", "0")
    assert f"http://{labels['instance']}/v1/corrupted-requests names them" in annotations["description"]
    assert annotations["runbook_url"].endswith("runbook.md#nanwatchcorruptedrequests")


@pytest.mark.parametrize(("name", "target"), TARGETS, ids=[name for name, _ in TARGETS])
def test_each_query_of_the_dashboard_answers_with_data(seen: Seen, name: str, target: dict[str, Any]) -> None:
    """An empty answer fails, and so does one of nothing but NaN."""
    query = put_in(target["expr"])
    if target["instant"]:
        values = [value for _, value in seen.prometheus.query(query)]
    else:
        now = time.time()
        answer = seen.prometheus.ask("/query_range", query=query, start=str(now - 30), end=str(now), step="1")
        values = [float(value) for series in answer["result"] for _, value in series["values"]]
    assert any(not isnan(value) for value in values), query


@pytest.mark.parametrize("query", LABELS)
def test_each_variable_of_the_dashboard_has_values(seen: Seen, query: str) -> None:
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", put_in(query))
    assert found is not None
    assert seen.prometheus.ask(f"/label/{found[2]}/values", **{"match[]": found[1]})


def test_the_alerts_are_drawn_into_the_dashboard(seen: Seen) -> None:
    (annotation,) = DASHBOARD["annotations"]["list"]
    assert seen.prometheus.query(annotation["expr"])


def test_exemplars_come_back_for_the_panel_that_shows_them(seen: Seen) -> None:
    (target,) = [target for _, target in TARGETS if target["exemplar"]]
    assert {"request_id": "cmpl-third"} in seen.prometheus.exemplars(put_in(target["expr"]))


def test_every_rule_is_evaluated_without_an_error(seen: Seen) -> None:
    """A join that finds two partners would be one; with two ranks and two replicas it would show."""
    (group,) = seen.prometheus.ask("/rules")["groups"]
    assert {(rule["health"], rule.get("lastError", "")) for rule in group["rules"]} == {("ok", "")}


def test_a_join_of_the_table_by_gpu_gives_each_rank_its_replicas_number(seen: Seen) -> None:
    (target,) = [target for name, target in TARGETS if name == "By GPU A"]
    found = {labels["UUID"]: value for labels, value in seen.prometheus.query(put_in(target["expr"]))}
    assert found == {"GPU-0": 3, "GPU-1": 3, "GPU-2": 0, "GPU-3": 0}


def test_a_drill_reaches_the_webhook_and_says_that_it_is_one(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted beside the busy fleet; the real counter stays at its three."""
    monkeypatch.setenv("NANWATCH_JOURNAL", str(seen.fleet.folder))
    assert drill.main([]) == 0
    until(lambda: "NanwatchDrill" in seen.webhook.names(), "the drill has reached the webhook")
    alert = next(one for one in seen.webhook.alerts if one["labels"]["alertname"] == "NanwatchDrill")
    assert (alert["labels"]["drill"], alert["labels"]["severity"]) == ("1", "warning")
    assert alert["annotations"]["summary"].startswith("DRILL, nothing has happened")
    assert seen.prometheus.value("sum(corrupted_requests_total)") == 3


def test_a_runner_that_skips_the_hook_is_on_its_way_to_an_alert(seen: Seen) -> None:
    """Zero corrupted requests, a hook that is active, and not one step: the alert waits its 15 minutes."""
    skipped = '{model_name="skipped"}'
    waits = (
        'ALERTS{alertname="NanwatchHookDead", cause="never-ran", alertstate="pending", model_name="skipped"}'
    )
    with seen.fleet.with_a_dead_hook():
        until(lambda: seen.prometheus.value(waits) == 1, "the dead hook's alert waits")
        assert seen.prometheus.value(f"corrupted_requests_total{skipped}") == 0
        assert seen.prometheus.value(f"nanwatch_hook_active{skipped}") == 1
        assert seen.prometheus.value(f"nanwatch_rows_total{skipped}") == 0


def put_in(query: str) -> str:
    """Return a query as Grafana sends it."""
    for name, value in PUT_IN.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query
