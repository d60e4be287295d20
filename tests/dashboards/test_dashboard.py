"""The committed dashboard: as the script builds it, complete for its reader, without unknown keys."""

import itertools
import json
import re
from typing import Any

import pytest

from dashboards import build, grafana

from .promql import FOREIGN, exported, metrics_in

Json = dict[str, Any]

DASHBOARD: Json = json.loads(build.FILE.read_text(encoding="utf-8"))
PANELS: list[Json] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES: dict[str, Json] = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]

DATASOURCE = '"datasource": {"type": "prometheus", "uid": "${datasource}"}'

every_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])

# What each object may have, from the JSON schemas of Grafana's kinds; "!" marks what it must have.
KEYS = {
    "dashboard": (
        "annotations! description! editable fiscalYearStartMonth graphTooltip id! links! panels! refresh "
        "schemaVersion! tags templating! time! timepicker timezone title! uid! version weekStart"
    ),
    "row": "collapsed! gridPos! id! panels! title! type!",
    "panel": (
        "datasource! description! fieldConfig! gridPos! id! options! targets! title! type! transformations"
    ),
    "gridPos": "h! w! x! y!",
    "target": "datasource! editorMode exemplar! expr! format! instant! legendFormat range! refId!",
    "fieldConfig": "defaults! overrides!",
    "defaults": "color! custom decimals links mappings max min noValue! thresholds unit!",
    "link": "asDropdown! icon! includeVars! keepTime! tags! targetBlank! title! tooltip! type! url!",
    "data link": "targetBlank title! url!",
    "annotation": "datasource! enable! expr! hide iconColor! name! step tagKeys titleFormat",
    "datasource variable": (
        "hide includeAll label! multi name! options query! refresh regex skipUrlSync type!"
    ),
    "query variable": (
        "allValue current datasource! definition hide includeAll label! multi name! options query! refresh! "
        "regex skipUrlSync sort type!"
    ),
    "textbox variable": "current! description hide label! name! options query! skipUrlSync type!",
    "stat options": (
        "colorMode! graphMode! justifyMode! orientation! percentChangeColorMode! reduceOptions! "
        "showPercentChange! textMode! wideLayout!"
    ),
    "stat custom": "",
    "timeseries options": "legend! tooltip!",
    "timeseries custom": (
        "drawStyle fillOpacity lineInterpolation lineWidth pointSize showPoints spanNulls stacking"
    ),
    "table options": "cellHeight frameIndex! showHeader! sortBy",
    "table custom": "align! inspect!",
}


def check(kind: str, found: Json) -> None:
    """Fail where an object has a key that its kind does not know, or lacks one that it must have."""
    known = KEYS[kind].split()
    assert set(found) <= {key.rstrip("!") for key in known}, f"{kind}: unknown keys"
    assert {key[:-1] for key in known if key.endswith("!")} <= set(found), f"{kind}: missing keys"


def test_the_committed_file_is_what_the_script_writes() -> None:
    """Change the script, then run `python -m dashboards.build`."""
    assert build.FILE.read_text(encoding="utf-8") == build.text()


def test_no_object_has_a_key_that_grafana_does_not_know() -> None:
    check("dashboard", DASHBOARD)
    for panel in DASHBOARD["panels"]:
        check("row" if panel["type"] == "row" else "panel", panel)
        check("gridPos", panel["gridPos"])
    for link in DASHBOARD["links"]:
        check("link", link)
    for variable in VARIABLES.values():
        check(f"{variable['type']} variable", variable)
    for annotation in DASHBOARD["annotations"]["list"]:
        check("annotation", annotation)


@every_panel
def test_no_panel_has_a_key_that_its_type_does_not_know(panel: Json) -> None:
    check(f"{panel['type']} options", panel["options"])
    check("fieldConfig", panel["fieldConfig"])
    defaults = panel["fieldConfig"]["defaults"]
    check("defaults", defaults)
    check(f"{panel['type']} custom", defaults.get("custom", {}))
    for link in defaults["links"]:
        check("data link", link)
    for target in panel["targets"]:
        check("target", target)


def test_it_imports_by_hand_and_provisions() -> None:
    """A null id, a fixed uid, no `__inputs`, and each data source is the variable's."""
    assert (DASHBOARD["schemaVersion"], DASHBOARD["id"], DASHBOARD["uid"]) == (39, None, "nanwatch")
    assert "__inputs" not in DASHBOARD
    assert json.dumps(DASHBOARD).count('"datasource": ') == json.dumps(DASHBOARD).count(DATASOURCE)
    assert list(VARIABLES) == ["datasource", "model_name", "engine", "sidecar", "runbook"]


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        columns = range(grid["x"], grid["x"] + grid["w"])
        own = set(itertools.product(columns, range(grid["y"], grid["y"] + grid["h"])))
        assert columns[-1] < grafana.COLUMNS
        assert not own & cells, panel["title"]
        cells |= own


def test_the_layout_of_a_line_that_is_full() -> None:
    """The example of `placed`: widths 12, 12, 8."""
    panels = [{"gridPos": {"w": width, "h": 4}} for width in (12, 12, 8)]
    assert [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in grafana.placed(panels)] == [
        (0, 0),
        (12, 0),
        (0, 4),
    ]


@every_panel
def test_a_reader_knows_what_a_panel_says(panel: Json) -> None:
    """Plain words, a unit, and a word for emptiness where 0 would be wrong."""
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["description"].endswith(".")
    assert defaults["unit"]
    assert defaults["noValue"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@every_panel
def test_a_panel_obeys_the_variables(panel: Json) -> None:
    """Whatever has the labels model_name and engine is filtered by them."""
    without = {"nanwatch_fail_fast_enabled", "nanwatch_journal_problems", "nanwatch_build_info"}
    for target in panel["targets"]:
        ours = metrics_in(target["expr"]) - FOREIGN - without
        selectors = target["expr"].count('{model_name=~"$model_name", engine=~"$engine"}')
        assert (selectors > 0) == bool(ours)
        assert target["instant"] != target["range"]


def test_the_metrics_are_the_sidecars_and_all_of_them_are_shown() -> None:
    """A histogram is shown by its buckets; everything else that is exported has a place."""
    shown = set().union(*map(metrics_in, QUERIES))
    assert shown - FOREIGN <= exported()
    buckets = "nanwatch_detection_delay_seconds"
    assert exported() - shown == {f"{buckets}_sum", f"{buckets}_count"}


def test_exemplars_are_on_where_requests_are_counted() -> None:
    with_exemplars = [target["expr"] for panel in PANELS for target in panel["targets"] if target["exemplar"]]
    assert [metrics_in(expr) for expr in with_exemplars] == [{"corrupted_requests_total"}]


def test_links_lead_to_the_requests_and_to_the_runbook() -> None:
    urls = [link["url"] for link in DASHBOARD["links"]]
    assert urls == ["http://${sidecar}/v1/corrupted-requests", "${runbook}"]
    assert VARIABLES["runbook"]["query"] == build.RUNBOOK
    clicks = [link["url"] for panel in PANELS for link in panel["fieldConfig"]["defaults"]["links"]]
    assert len(clicks) == 3
    assert all("/v1/corrupted-requests" in url for url in clicks)


def test_queries_of_variables_name_metrics_of_the_sidecar() -> None:
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", variable["query"])
            assert found is not None
            assert found[1] in exported()
