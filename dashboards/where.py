"""The second row: from the model to a GPU."""

from .grafana import Json, column, link, row, table, target, timeseries
from .queries import NO_SOURCE, REPLICA, chosen, in_range, per_second

NO_DCGM = "no DCGM exporter for these GPUs"
WHO = link("Which requests", "http://${__data.fields.Sidecar}/v1/corrupted-requests?limit=1000")


def where() -> list[Json]:
    """Return the row that leads from the model to a GPU."""
    watched = f"and on (UUID) {chosen('nanwatch_source_info')}"
    return row(
        "Where?",
        [
            table(
                "By replica",
                "Corrupted requests in the chosen range. One replica apart from others with the same model "
                "points to its hardware; all alike point to the model or a kernel.",
                [
                    column(in_range("corrupted_requests_total", REPLICA)),
                    column(in_range("nanwatch_requests_total", REPLICA)),
                ],
                columns={
                    "model_name": "Model",
                    "engine": "Engine",
                    "runtime": "Runtime",
                    "replica": "Replica",
                    "Value #A": "Corrupted",
                    "Value #B": "Requests",
                    "instance": "Sidecar",
                },
                sort_by="Corrupted",
                links=[WHO],
                empty=NO_SOURCE,
            ),
            table(
                "By GPU",
                "Every watched rank, what it runs on, and the corrupted requests of its replica so far. "
                "All ranks of one replica compute the same logits and show the same number.",
                [
                    column(
                        f"{chosen('nanwatch_source_info')} * on ({REPLICA}) group_left () "
                        f"{chosen('corrupted_requests_total')}"
                    )
                ],
                columns={
                    "host": "Host",
                    "rank": "Rank",
                    "UUID": "GPU",
                    "device": "Device",
                    "model_name": "Model",
                    "replica": "Replica",
                    "pid": "Process",
                    "versions": "Versions",
                    "Value": "Corrupted",
                    "instance": "Sidecar",
                },
                sort_by="Corrupted",
                links=[WHO],
                empty=NO_SOURCE,
            ),
            timeseries(
                "NaN rows per second, by model and engine",
                "Logits rows of requests that held a NaN: a request that stays bad adds one for each token.",
                [
                    target(
                        per_second("nanwatch_nan_rows_total", "model_name, engine"),
                        "{{model_name}} engine {{engine}}",
                    )
                ],
                unit="suffix: rows/s",
                empty=NO_SOURCE,
            ),
            timeseries(
                "NaN rows per second, by host",
                "One host apart from the others points to what its GPUs share: driver, power, links, memory.",
                [target(per_second("nanwatch_nan_rows_total", "host"), "{{host}}")],
                unit="suffix: rows/s",
                empty=NO_SOURCE,
            ),
            timeseries(
                "NaN rows per second, by GPU",
                "By the rank that counts. Other ranks of a tensor-parallel replica see the same logits.",
                [
                    target(
                        per_second("nanwatch_nan_rows_total", "host, rank, UUID"),
                        "{{host}} rank {{rank}} {{UUID}}",
                    )
                ],
                unit="suffix: rows/s",
                empty=NO_SOURCE,
            ),
            timeseries(
                "NaN values for each NaN row",
                "The whole vocabulary: a layer or attention before it was NaN. A few values: the last layer.",
                [
                    target(
                        f"{per_second('nanwatch_nan_values_total', 'model_name, engine')} "
                        f"/ ({per_second('nanwatch_nan_rows_total', 'model_name, engine')} > 0)",
                        "{{model_name}} engine {{engine}}",
                    )
                ],
                unit="short",
                empty="no NaN in this range",
            ),
            timeseries(
                "Rows with +inf, or with nothing but -inf, per second",
                "They make no corrupted request. +inf is an overflow, often the step before NaN; a row of "
                "nothing but -inf leaves a sampler no token to take, and its softmax is NaN.",
                [
                    target(per_second("nanwatch_posinf_rows_total", "model_name"), "{{model_name}} +inf"),
                    target(
                        per_second("nanwatch_fully_masked_rows_total", "model_name"),
                        "{{model_name}} nothing but -inf",
                    ),
                ],
                unit="suffix: rows/s",
                empty=NO_SOURCE,
            ),
            timeseries(
                "XID errors of watched GPUs",
                "The last XID error that the driver reported for each GPU (0: none), from DCGM's exporter. "
                "One that begins with the corruption points to the GPU.",
                [
                    target(
                        f"max by (UUID, Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS) {watched}",
                        "{{Hostname}} gpu {{gpu}} {{UUID}}",
                    )
                ],
                unit="none",
                empty=NO_DCGM,
            ),
            timeseries(
                "Uncorrectable memory errors of watched GPUs",
                "Double-bit ECC errors since the driver was loaded, and memory rows remapped for such "
                "errors, from DCGM's exporter. Not every DCGM exporter is set to tell both.",
                [
                    target(
                        f"max by (UUID, Hostname, gpu) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL) {watched}",
                        "{{Hostname}} gpu {{gpu}} double-bit errors",
                    ),
                    target(
                        f"max by (UUID, Hostname, gpu) (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS) {watched}",
                        "{{Hostname}} gpu {{gpu}} remapped rows",
                    ),
                ],
                unit="short",
                empty=NO_DCGM,
            ),
        ],
    )
