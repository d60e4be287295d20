"""What 1 to 10,000 pods cost a Prometheus: `python -m benchmarks scaling`.

Series are counted for real; the rest is arithmetic over rules of thumb, whose sources docs/scaling.md names.
That page holds what is printed here: `python -m benchmarks.scaling --write` puts it there, and a test
compares both.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.series import INTERVAL_SECONDS, OF_A_TARGET, Counted, Series, count, fitting

ROOT = Path(__file__).parent.parent
PAGE, RULES = ROOT / "docs/scaling.md", ROOT / "dashboards/rules.yml"

PODS = (1, 10, 100, 1_000, 10_000)
BYTES_IN_MEMORY = (3_000, 10_000)  # for each series: the rule of thumb, and what was measured
BYTES_ON_DISK = 2  # for each sample
RETENTION_SECONDS = 15 * 86_400
RANGE_SECONDS = 6 * 3_600  # of the dashboard

# No rule reads these; without them some panels of the dashboard's last row are empty.
DROP_AT_SCRAPE = (
    "nanwatch_detection_delay_seconds_(bucket|count|sum)|nanwatch_queue_full_total"
    "|nanwatch_dropped_entries_total|nanwatch_padding_nan_rows_total"
)
KEEP_BY_REPLICA = "corrupted_requests_total|nanwatch_(requests_total|hook_active|source_info|model:.+)|ALERTS"
KEEP_BY_MODEL = "nanwatch_model:.+|ALERTS"
ALL_AND_KEPT = (".*", KEEP_BY_REPLICA, KEEP_BY_MODEL)


def main() -> None:
    """Print every block of docs/scaling.md."""
    for name, text in blocks().items():
        print(f"{name}\n\n{text}\n")


def write() -> None:
    """Put every block into docs/scaling.md."""
    PAGE.write_text(with_blocks(PAGE.read_text(encoding="utf-8"), blocks()), encoding="utf-8")


def with_blocks(page: str, texts: Mapping[str, str]) -> str:
    """Return a page with the text between `<!-- NAME -->` and `<!-- end -->` replaced, name by name."""
    for name, text in texts.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, found = pattern.subn(lambda hit, text=text: f"{hit[1]}\n{text}\n\n{hit[2]}", page)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"the page holds {found} blocks <!-- {name} --> ... <!-- end -->, expected one")
    return page


def blocks() -> dict[str, str]:
    """Return the page's tables and examples, by the name of their place."""
    counted = count()
    series = Series.of_pod(counted, RULES.read_text(encoding="utf-8"))
    return {
        "series": _series(counted, series),
        "pods": _pods(series),
        "query": _query(),
        "drop": _drop(series),
        "keep": _keep(series),
    }


def _series(counted: Counted, series: Series) -> str:
    scraped, recorded = series.scraped.total(), series.recorded.total()
    return _table(
        ("", "series"),
        [
            ("the sidecar itself", counted.sidecar.total()),
            ("each engine (its replica's totals, the delay's histogram)", counted.engine.total()),
            ("each rank that writes", counted.rank.total()),
            ("Prometheus' own, for each target", len(OF_A_TARGET)),
            ("**a pod: one engine, one rank that writes**", f"**{scraped}**"),
            ("recorded by the rules, for each such pod", recorded),
            ("recorded by the rules, once for each model", series.recorded_once.total()),
        ],
    )


def _pods(series: Series) -> str:
    rows = []
    for pods in PODS:
        scraped, total = pods * series.scraped.total(), series.of(pods)
        samples = series.samples_per_second(pods)
        rows.append(
            (
                f"{pods:,}",
                f"{scraped:,}",
                f"{total - scraped:,}",
                _number(samples),
                " to ".join(_bytes(total * each) for each in BYTES_IN_MEMORY),
                _bytes(samples * RETENTION_SECONDS * BYTES_ON_DISK),
            )
        )
    header = ("pods", "series scraped", "recorded", "samples a second", "memory", "disk for 15 days")
    return _table(header, rows)


def _query() -> str:
    samples = RANGE_SECONDS // INTERVAL_SECONDS
    rows = [(f"{pods:,}", f"{2 * pods * samples:,}", f"{samples:,}") for pods in PODS]
    return _table(("pods", "samples read from the counters", "from the recorded share"), rows)


def _drop(series: Series) -> str:
    dropped = fitting(series.scraped, DROP_AT_SCRAPE)
    return (
        "```yaml\n"
        "metric_relabel_configs: # in a PodMonitor: metricRelabelings, with sourceLabels\n"
        "  - source_labels: [__name__]\n"
        f"    regex: {DROP_AT_SCRAPE}\n"
        "    action: drop\n"
        "```\n\n"
        f"drops {dropped} of the {series.scraped.total()} series of a pod."
    )


def _keep(series: Series) -> str:
    rows = [
        (f"{pods:,}", *(_number(series.samples_per_second(pods, keep)) for keep in ALL_AND_KEPT))
        for pods in PODS
    ]
    table = _table(("pods", "all", "by replica", "by model"), rows)
    examples = (
        "```yaml\n"
        "remote_write:\n"
        "  - url: https://metrics.example/api/v1/push\n"
        "    send_exemplars: true # the ids of corrupted requests\n"
        "    write_relabel_configs:\n"
        "      - source_labels: [__name__]\n"
        f"        regex: {KEEP_BY_REPLICA}\n"
        f"        # by model: {KEEP_BY_MODEL}\n"
        "        action: keep\n"
        "```"
    )
    return f"{examples}\n\nSamples a second that are sent on:\n\n{table}"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _number(value: float) -> str:
    """0.0667 -> 0.07, 4.2 -> 4.2, 4133.3 -> 4,133."""
    if value < 1:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004


def _bytes(value: float) -> str:
    """Show two digits of kB, MB or GB, in powers of ten: 186000 -> 190 kB."""
    size, unit = value / 1e3, "kB"
    if size >= 999.5:  # noqa: PLR2004  it would be shown as 1000
        size, unit = size / 1e3, "MB"
    if size >= 999.5:  # noqa: PLR2004
        size, unit = size / 1e3, "GB"
    return f"{float(f'{size:.2g}'):g} {unit}"


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else main()
