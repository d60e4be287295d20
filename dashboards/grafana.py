"""The classic dashboard model, as far as it is used here: each function returns one JSON object.

A key that Grafana does not know is dropped without a word, so nothing is passed through: what a
panel has is written out here, once, and tests/dashboards/test_dashboard.py lists what each may have.
Source: the JSON schemas of Grafana's dashboard, stat, table and timeseries kinds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24  # Grafana's grid
RED_ABOVE_ZERO = ((None, "green"), (0.000001, "red"))
PLAIN = ((None, "blue"),)

Steps = Sequence[tuple[float | None, str]]


def target(expr: str, legend: str = "", *, instant: bool = False, exemplar: bool = False) -> Json:
    """Return a query over the range, or of the range's end where `instant`."""
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "exemplar": exemplar,
        "expr": expr,
        "format": "time_series",
        "instant": instant,
        "legendFormat": legend or "__auto",
        "range": not instant,
        "refId": "A",
    }


def column(expr: str) -> Json:
    """Return an instant query as columns of a table: its labels, and one for the value."""
    return target(expr, instant=True) | {"format": "table"}


def link(title: str, url: str) -> Json:
    """Return a link that a click on a value offers."""
    return {"title": title, "url": url, "targetBlank": True}


def stat(  # noqa: PLR0913  each is a thing that a reader of the dashboard sees
    title: str,
    description: str,
    expr: str,
    *,
    unit: str,
    empty: str,
    steps: Steps = RED_ABOVE_ZERO,
    decimals: int | None = None,
    mappings: Sequence[Json] = (),
    width: int = 4,
) -> Json:
    """Return a panel with one big number."""
    return _panel("stat", title, description, [target(expr, instant=True)], (width, 4)) | {
        "fieldConfig": _field(unit, empty, steps, decimals=decimals, mappings=mappings),
        "options": {
            "colorMode": "background",
            "graphMode": "none",
            "justifyMode": "center",
            "orientation": "auto",
            "percentChangeColorMode": "standard",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "showPercentChange": False,
            "textMode": "value",
            "wideLayout": True,
        },
    }


def timeseries(  # noqa: PLR0913  likewise
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    unit: str,
    empty: str,
    links: Sequence[Json] = (),
    at_most: float | None = None,
    width: int = 8,
) -> Json:
    """Return a panel with lines over time, from 0 upwards."""
    field = _field(unit, empty, (), links=links)
    field["defaults"] |= {"min": 0, "color": {"mode": "palette-classic"}, "custom": _lines()}
    if at_most is not None:
        field["defaults"]["max"] = at_most
    return _panel("timeseries", title, description, targets, (width, 8)) | {
        "fieldConfig": field,
        "options": {
            "legend": {"calcs": ["max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
            "tooltip": {"hideZeros": False, "mode": "multi", "sort": "desc"},
        },
    }


def table(  # noqa: PLR0913  likewise
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    columns: Mapping[str, str],
    sort_by: str,
    empty: str,
    links: Sequence[Json] = (),
    width: int = 12,
) -> Json:
    """Return a table that joins its queries by their labels.

    `columns` are the fields to show, in order, with their headings; `sort_by` is a heading.
    """
    field = _field("short", empty, PLAIN, links=links)
    field["defaults"]["custom"] = {"align": "auto", "inspect": False}
    return _panel("table", title, description, targets, (width, 8)) | {
        "fieldConfig": field,
        "options": {
            "cellHeight": "sm",
            "frameIndex": 0,
            "showHeader": True,
            "sortBy": [{"desc": True, "displayName": sort_by}],
        },
        "transformations": [
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {},
                    "indexByName": {name: i for i, name in enumerate(columns)},
                    "renameByName": dict(columns),
                },
            },
        ],
    }


def row(title: str, panels: Sequence[Json]) -> list[Json]:
    """Return an open row and what stands in it."""
    return [
        {"collapsed": False, "panels": [], "title": title, "type": "row", "gridPos": _size(COLUMNS, 1)},
        *panels,
    ]


def placed(panels: Sequence[Json]) -> list[Json]:
    """Number the panels, and set each beside the one before it while the line holds it.

    Widths 12, 12, 8 -> x = 0, 12, 0: the third begins a line of its own.
    """
    x = y = line = 0
    done = []
    for number, panel in enumerate(panels, start=1):
        width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
        if x + width > COLUMNS:
            x, y, line = 0, y + line, 0
        done.append(panel | {"id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x, line = x + width, max(line, height)
    return done


def _panel(kind: str, title: str, description: str, targets: Sequence[Json], size: tuple[int, int]) -> Json:
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": _size(*size),
        "targets": [one | {"refId": chr(ord("A") + i)} for i, one in enumerate(targets)],
    }


def _size(width: int, height: int) -> Json:
    return {"w": width, "h": height}


def _field(  # noqa: PLR0913  likewise
    unit: str,
    empty: str,
    steps: Steps,
    *,
    decimals: int | None = None,
    mappings: Sequence[Json] = (),
    links: Sequence[Json] = (),
) -> Json:
    defaults: Json = {"unit": unit, "noValue": empty, "links": list(links), "mappings": list(mappings)}
    if decimals is not None:
        defaults["decimals"] = decimals
    if steps:
        defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [{"color": color, "value": value} for value, color in steps],
        }
    return {"defaults": defaults, "overrides": []}


def _lines() -> Json:
    return {
        "drawStyle": "line",
        "fillOpacity": 10,
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "pointSize": 4,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "none"},
    }
