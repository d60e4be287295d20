"""The scrape as other people's dashboards and alerts read it: to be changed on purpose only.

WRITE_GOLDEN=1 in the environment writes tests/golden/metrics.txt anew.
"""

import os
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nanwatch.journal.reader import JournalReader
from nanwatch.settings import Settings
from nanwatch_sidecar.app import create_app
from nanwatch_sidecar.journal_view import JournalView
from tests.engine import Engine
from tests.tools import lint_metrics

GOLDEN = Path(__file__).parent.parent / "golden" / "metrics.txt"
FORMATS = {"text": "text/plain;version=0.0.4", "OpenMetrics": "application/openmetrics-text;version=1.0.0"}

_CLOCKS = [
    (re.compile(r"(nanwatch_last_step_timestamp_seconds\{[^}]*\}) [1-9].*"), r"\1 <clock>"),
    (re.compile(r"(nanwatch_build_info\{version=)\"[^\"]*\""), r'\1"<version>"'),
]


def scrapes(journal: Path) -> dict[str, str]:
    """Return one small history in both formats: two ranks, a dead life, a NaN of each kind."""
    with Engine(journal, "life-0", model_name='a "model"') as dead:
        dead.serve(2)
    with Engine(journal) as rank_0, Engine(journal, counting=False, rank="1", uuid="GPU-2") as rank_1:
        rank_0.serve(9)
        rank_0.totals.add_delay(0.004)
        rank_0.totals.add_delay(0.3)
        rank_0.totals.padding_nan_rows, rank_0.totals.unattributed_nan_rows = 3, 1
        rank_0.totals.posinf_rows, rank_0.totals.fully_masked_rows = 4, 2
        rank_0.totals.dropped_steps["slots"] = 1
        rank_0.corrupt("cmpl-1", first_seen_seconds=1_800_000_000.25, rows=2, values=64)
        rank_1.corrupt("cmpl-1", rows=2, values=64)
        view = JournalView(JournalReader(journal))
        client = TestClient(create_app(Settings(), view))
        found = {name: client.get("/metrics", headers={"accept": how}).text for name, how in FORMATS.items()}
        view.close()
    return found


def without_clocks(text: str) -> str:
    for pattern, replacement in _CLOCKS:
        text = pattern.sub(replacement, text)
    return text


def test_the_scrape_is_the_golden_one(journal: Path) -> None:
    """Names, labels, HELP and values in both formats are pinned in tests/golden/metrics.txt."""
    parts = [f"=== {name}\n{without_clocks(text)}" for name, text in scrapes(journal).items()]
    if "WRITE_GOLDEN" in os.environ:
        GOLDEN.write_text("".join(parts), encoding="utf-8")
    assert "".join(parts) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say(journal: Path) -> None:
    """Names, types and HELP follow Prometheus' conventions, as promtool checks them."""
    assert lint_metrics(scrapes(journal)["text"]) == ""
