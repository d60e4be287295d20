"""Which metrics a text names: enough of PromQL's grammar for our own queries."""

import re
from pathlib import Path

from nanwatch.journal.reader import JournalReader
from nanwatch_sidecar.collector import NanwatchCollector
from nanwatch_sidecar.journal_view import JournalView

# Of other exporters; and what Prometheus makes itself.
FOREIGN = {
    "up",
    "ALERTS",
    "vllm:generation_tokens_total",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
}
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "gauge": ("",),
}

_NOT_METRICS = re.compile(
    r'"[^"]*"'  # strings
    r"|\{[^{}]*\}|\[[^\]]*\]"  # selectors' labels, ranges
    r"|\b(by|on|group_left|group_right)\s*\([^()]*\)"
)
_KEYWORDS = {"and", "or", "unless", "offset", "bool"}
_NAME = re.compile(r"(?<![\w:$])[A-Za-z_][\w:]*(?!\w*\s*\()")


def metrics_in(query: str) -> set[str]:
    """Return the metrics of a query: `sum by (a) (rate(b{c="d"}[5m]))` -> {"b"}."""
    bare = _NOT_METRICS.sub(" ", _NOT_METRICS.sub(" ", query))
    return {name for name in _NAME.findall(bare) if name not in _KEYWORDS}


def exported() -> set[str]:
    """Return every sample name that the sidecar exports."""
    view = JournalView(JournalReader(Path("nowhere")))
    families = NanwatchCollector(view, fail_fast=False, version="").describe()
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}
