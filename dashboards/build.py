"""Writes nanwatch.json: `python -m dashboards.build`.

Plain Python, without Grafana's SDK: that checks nothing that it is given, leaves ids, legends and
calculations to be set by hand all the same, and a newer build of it sorts below an older one.
"""

import json
from pathlib import Path

from .grafana import DATASOURCE, Json, placed
from .happening import is_it_happening
from .wellness import is_nanwatch_well
from .where import where

FILE = Path(__file__).with_name("nanwatch.json")
RUNBOOK = "https://example.com/nanwatch/runbook.md"  # as in rules.yml


def dashboard() -> Json:
    """Return the dashboard. It imports by hand and provisions: `__inputs` would only do the first."""
    return {
        "annotations": {"list": [_alerts()]},
        "description": "Which requests came out as NaN, where, and whether anyone is looking.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [
            _link(
                "Corrupted requests",
                "http://${sidecar}/v1/corrupted-requests",
                "The list of the chosen sidecar",
            ),
            _link("Runbook", "${runbook}", "What each alert means, and what to do"),
        ],
        "panels": placed([*is_it_happening(), *where(), *is_nanwatch_well()]),
        "refresh": "30s",
        "schemaVersion": 39,
        "tags": ["nanwatch", "inference"],
        "templating": {"list": _variables()},
        "time": {"from": "now-6h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": "nanwatch: requests that came out as NaN",
        "uid": "nanwatch",
        "version": 1,
        "weekStart": "",
    }


def text() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def _variables() -> list[Json]:
    return [
        {
            "hide": 0,
            "includeAll": False,
            "label": "Data source",
            "multi": False,
            "name": "datasource",
            "options": [],
            "query": "prometheus",
            "refresh": 1,
            "regex": "",
            "skipUrlSync": False,
            "type": "datasource",
        },
        _labels("model_name", "Model", "label_values(corrupted_requests_total, model_name)"),
        _labels(
            "engine", "Engine", 'label_values(corrupted_requests_total{model_name=~"$model_name"}, engine)'
        ),
        _labels(
            "sidecar", "Sidecar, for the link", "label_values(nanwatch_build_info, instance)", several=False
        ),
        {
            "current": {"selected": True, "text": RUNBOOK, "value": RUNBOOK},
            "description": "The address of your copy of runbook.md.",
            "hide": 0,
            "label": "Runbook",
            "name": "runbook",
            "options": [{"selected": True, "text": RUNBOOK, "value": RUNBOOK}],
            "query": RUNBOOK,
            "skipUrlSync": False,
            "type": "textbox",
        },
    ]


def _labels(name: str, label: str, query: str, *, several: bool = True) -> Json:
    """Return a variable that takes the values of a label, all of them at first where `several`."""
    every = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {
        **({"allValue": ".*", "current": every} if several else {}),
        "datasource": DATASOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": several,
        "label": label,
        "multi": several,
        "name": name,
        "options": [],
        "query": query,
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
        "type": "query",
    }


def _link(title: str, url: str, tooltip: str) -> Json:
    return {
        "asDropdown": False,
        "icon": "external link",
        "includeVars": False,
        "keepTime": False,
        "tags": [],
        "targetBlank": True,
        "title": title,
        "tooltip": tooltip,
        "type": "link",
        "url": url,
    }


def _alerts() -> Json:
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": 'ALERTS{alertname=~"Nanwatch.*", alertstate="firing"}',
        "hide": False,
        "iconColor": "red",
        "name": "Alerts of nanwatch",
        "step": "60s",
        "tagKeys": "severity,cause,model_name,replica",
        "titleFormat": "{{alertname}}",
    }


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
