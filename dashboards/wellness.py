"""The third row: whether nanwatch itself looks, so that zero means zero."""

from .grafana import PLAIN, Json, row, stat, target, timeseries
from .queries import NO_SIDECAR, NO_SOURCE, REPLICA, REPLICA_LEGEND, chosen, in_range, per_second


def is_nanwatch_well() -> list[Json]:
    """Return the row that says whether zero means zero."""
    delays = f"sum by (le) (rate({chosen('nanwatch_detection_delay_seconds_bucket')}[$__rate_interval]))"
    return row(
        "Is nanwatch itself well?",
        [
            stat(
                "Hooks active",
                "Ranks whose process lives and wrote to its journal within ten seconds.",
                f"sum({chosen('nanwatch_hook_active')})",
                unit="short",
                decimals=0,
                steps=((None, "red"), (1, "green")),
                empty=NO_SOURCE,
            ),
            stat(
                "Hooks not active",
                "Ranks whose process died, or hangs, within the last ten minutes: nobody looks there.",
                f"sum(1 - {chosen('nanwatch_hook_active')})",
                unit="short",
                decimals=0,
                empty=NO_SOURCE,
            ),
            stat(
                "Since the last step",
                "How long ago a hook was last shown a step. Long while there is traffic: dead hooks.",
                f"time() - max({chosen('nanwatch_last_step_timestamp_seconds')} > 0)",
                unit="s",
                decimals=0,
                steps=PLAIN,
                empty="no step was ever seen",
            ),
            stat(
                "Steps not looked at",
                "Steps in the chosen range that were dropped, for whatever reason. 0 is health.",
                in_range("nanwatch_dropped_steps_total"),
                unit="short",
                decimals=0,
                empty=NO_SOURCE,
            ),
            stat(
                "Journal problems",
                "What the sidecars cannot read just now; /readyz of each says it in words.",
                "sum(nanwatch_journal_problems)",
                unit="short",
                decimals=0,
                empty=NO_SIDECAR,
            ),
            stat(
                "Rank disagreements",
                "Requests in the chosen range that one rank saw as NaN and the counting rank did not. "
                "They hold the same logits, so this points to one GPU or a link.",
                in_range("nanwatch_rank_disagreements_total"),
                unit="short",
                decimals=0,
                empty=NO_SOURCE,
            ),
            timeseries(
                "Rows looked at per second",
                "Logits rows, about one for each token. A line that falls to 0 under traffic: a dead hook.",
                [target(per_second("nanwatch_rows_total", REPLICA), REPLICA_LEGEND)],
                unit="suffix: rows/s",
                empty=NO_SOURCE,
            ),
            timeseries(
                "Steps looked at per second",
                "Passes of the engine whose logits were looked at, and those that were not, by reason.",
                [
                    target(per_second("nanwatch_steps_total", "model_name"), "{{model_name}}"),
                    target(
                        per_second("nanwatch_dropped_steps_total", "model_name, reason"),
                        "{{model_name}} not: {{reason}}",
                    ),
                ],
                unit="suffix: steps/s",
                empty=NO_SOURCE,
            ),
            timeseries(
                "NaN rows of no known request, per second",
                "Unattributed: real corruption whose owner is not known. Padding: rows of no request, which "
                "corrupt nothing.",
                [
                    target(
                        per_second("nanwatch_unattributed_nan_rows_total", "model_name"),
                        "{{model_name}} unattributed",
                    ),
                    target(
                        per_second("nanwatch_padding_nan_rows_total", "model_name"), "{{model_name}} padding"
                    ),
                ],
                unit="suffix: rows/s",
                empty=NO_SOURCE,
            ),
            timeseries(
                "Detection delay",
                "From the step that made a request's first NaN to its line in the journal. There is no line "
                "where no request was corrupted.",
                [
                    target(f"histogram_quantile(0.5, {delays})", "median"),
                    target(f"histogram_quantile(0.99, {delays})", "99th percentile"),
                ],
                unit="s",
                empty="no request was corrupted",
                width=6,
            ),
            timeseries(
                "Journal errors per second",
                "Writes that failed (kept in memory and written later), descriptions let go meanwhile (their "
                "requests are counted), and counts that your own queue had no place for.",
                [
                    target(
                        per_second("nanwatch_journal_errors_total", "model_name"),
                        "{{model_name}} failed writes",
                    ),
                    target(
                        per_second("nanwatch_dropped_entries_total", "model_name"),
                        "{{model_name}} descriptions let go",
                    ),
                    target(
                        per_second("nanwatch_queue_full_total", "model_name"), "{{model_name}} queue full"
                    ),
                ],
                unit="suffix: /s",
                empty=NO_SOURCE,
                width=6,
            ),
            timeseries(
                "Sidecars, by version",
                "Sidecars that Prometheus scrapes. Fewer than engines: some are not scraped.",
                [target("count by (version) (nanwatch_build_info)", "{{version}}")],
                unit="short",
                empty=NO_SIDECAR,
                width=6,
            ),
            timeseries(
                "Drills",
                "Requests that `nanwatch drill` planted, so that somebody sees the alert arrive. They never "
                "happened, and are in no other panel.",
                [target(f"sum by ({REPLICA}) ({chosen('nanwatch_drill_requests_total')})", REPLICA_LEGEND)],
                unit="short",
                empty=NO_SOURCE,
                width=6,
            ),
        ],
    )
