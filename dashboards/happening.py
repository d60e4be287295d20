"""The first row: whether requests come out as NaN, and how many."""

from .grafana import PLAIN, Json, link, row, stat, target, timeseries
from .queries import NO_SIDECAR, NO_SOURCE, REPLICA, REPLICA_LEGEND, chosen, in_range, per_second, share

WHO = link("Which requests", "http://${__field.labels.instance}/v1/corrupted-requests?limit=1000")
ON_OR_OFF: Json = {
    "type": "value",
    "options": {"0": {"index": 0, "text": "off"}, "1": {"index": 1, "text": "on"}},
}


def is_it_happening() -> list[Json]:
    """Return the row that a person looks at first."""
    corrupted = "corrupted_requests_total"
    turned_bad = f"{chosen(corrupted)} > 0 and increase({chosen(corrupted)}[$__rate_interval]) > 0"
    return row(
        "Is it happening?",
        [
            stat(
                "Corrupted requests",
                "Requests in the chosen range with a NaN in their logits at any step, each counted once. "
                "Their clients were told 200 and got garbage. 0 is health; one is worth a look.",
                in_range(corrupted),
                unit="short",
                decimals=0,
                empty=NO_SOURCE,
                width=3,
            ),
            stat(
                "Share of all requests",
                "Corrupted requests in the chosen range, of all requests seen in it.",
                share(in_range(corrupted), in_range("nanwatch_requests_total")),
                unit="percentunit",
                empty="no requests in this range",
                width=3,
            ),
            stat(
                "Last seen",
                "How long ago the newest corrupted request of the chosen range was seen, to the scrape.",
                f"max(max_over_time(timestamp({turned_bad})[$__range:$__interval])) * 1000",
                unit="dateTimeFromNow",
                steps=((None, "red"),),
                empty="never in this range",
                width=3,
            ),
            stat(
                "Requests",
                "All requests that were looked at in the chosen range, corrupted or not. "
                "While this is 0, no corrupted requests means nothing.",
                in_range("nanwatch_requests_total"),
                unit="short",
                decimals=0,
                steps=PLAIN,
                empty=NO_SOURCE,
                width=3,
            ),
            stat(
                "Fail-fast",
                "On: an engine raises in the step that made a NaN, instead of serving it.",
                "max(nanwatch_fail_fast_enabled)",
                unit="short",
                steps=PLAIN,
                mappings=[ON_OR_OFF],
                empty=NO_SIDECAR,
                width=3,
            ),
            stat(
                "Fail-fast trips",
                "Times in the chosen range that fail-fast stopped an engine at a NaN.",
                in_range("nanwatch_fail_fast_trips_total"),
                unit="short",
                decimals=0,
                empty=NO_SOURCE,
                width=3,
            ),
            stat(
                "Ended with an error",
                "Corrupted requests in the chosen range that were ended alone (NANWATCH_ON_NAN=abort): "
                "their clients got an error in place of garbage, and the others ran on.",
                in_range("nanwatch_aborted_requests_total"),
                unit="short",
                decimals=0,
                steps=PLAIN,
                empty=NO_SOURCE,
                width=3,
            ),
            stat(
                "KV blocks held back",
                "KV blocks with NaN in them that nobody is given now. They are missing from the cache; more "
                "than 0 for long is an alert.",
                f"sum({chosen('nanwatch_quarantined_blocks')})",
                unit="short",
                decimals=0,
                empty=NO_SOURCE,
                width=3,
            ),
            timeseries(
                "Corrupted requests per second",
                "Each point beside a line is an exemplar: the id of a corrupted request. A line that stays "
                "up is a cascade: reused KV blocks hand the NaN on.",
                [
                    target(
                        f"sum by ({REPLICA}) (rate({chosen(corrupted)}[$__rate_interval]))",
                        REPLICA_LEGEND,
                        exemplar=True,
                    )
                ],
                unit="reqps",
                links=[WHO],
                empty=NO_SOURCE,
                width=8,
            ),
            timeseries(
                "Share of all requests, by model",
                "Corrupted requests of all requests. There is no line where there is no traffic.",
                [
                    target(
                        share(
                            per_second(corrupted, "model_name"),
                            per_second("nanwatch_requests_total", "model_name"),
                        ),
                        "{{model_name}}",
                    )
                ],
                unit="percentunit",
                empty="no requests in this range",
                width=8,
            ),
            timeseries(
                "KV blocks found poisoned, per second",
                "KV cache blocks in which NaN was found and that nobody is given with it. Only an engine "
                "that ends corrupted requests looks for them.",
                [target(per_second("nanwatch_kv_poisoned_blocks_total", "host"), "{{host}}")],
                unit="suffix: blocks/s",
                empty=NO_SOURCE,
            ),
        ],
    )
