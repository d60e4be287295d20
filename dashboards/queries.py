"""Pieces of PromQL that the rows share.

Queries name the sidecar's own metrics, so that the dashboard works without the recording rules.
"""

CHOSEN = 'model_name=~"$model_name", engine=~"$engine"'
REPLICA = "job, instance, model_name, engine, runtime, replica"
REPLICA_LEGEND = "{{model_name}} engine {{engine}} replica {{replica}}"

NO_SOURCE = "no engine is watched"
NO_SIDECAR = "no sidecar is scraped"


def chosen(metric: str, more: str = "") -> str:
    """Return a metric of the chosen models and engines: a -> a{model_name=~..., engine=~...}."""
    return f"{metric}{{{CHOSEN}{more}}}"


def per_second(metric: str, by: str) -> str:
    """Return the sum of a counter's rates, by some labels."""
    return f"sum by ({by}) (rate({chosen(metric)}[$__rate_interval]))"


def in_range(metric: str, by: str = "") -> str:
    """Return what a counter grew by in the dashboard's range."""
    return f"sum{f' by ({by})' if by else ''} (increase({chosen(metric)}[$__range]))"


def share(corrupted: str, requests: str) -> str:
    """Return a share that is absent, rather than 0, while there are no requests."""
    return f"clamp_max({corrupted} / ({requests} > 0), 1)"
