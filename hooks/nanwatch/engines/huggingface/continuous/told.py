"""What each client is told when fail-fast stops the engine: of its own request, and of others only how many.

Whose NaN it was is for the log, the journal and whoever runs the engine. Another client can do nothing with
the id, which may say who somebody is.
"""

from nanwatch.failfast import NanLogitsError


class EngineStoppedError(RuntimeError):
    """The engine was stopped at NaN in the logits of requests that the reader did not send."""


def told_to(request_id: str, error: NanLogitsError) -> RuntimeError:
    """Return what the client of one request is told of what stopped the engine.

    NanLogitsError({"a": 5, "b": 2}) tells a of {"a": 5} alone, and c the same as `told_to_all`.
    """
    if request_id in error.requests:
        return NanLogitsError({request_id: error.requests[request_id]}, error.note)
    return told_to_all(error)


def told_to_all(error: NanLogitsError) -> RuntimeError:
    """Return what can be told to everybody: how many requests, and how many NaNs, but no id."""
    if not error.requests:
        return error
    requests, values = len(error.requests), sum(error.requests.values())
    whose = "another request" if requests == 1 else f"{requests} other requests"
    return EngineStoppedError(f"the engine was stopped: {values} NaNs in the logits of {whose}{error.note}")
