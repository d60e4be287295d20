"""Fail-fast: what is raised at a corrupted request, and the check that raises it."""

from collections.abc import Mapping


class NanLogitsError(RuntimeError):
    """A request's logits held NaN, and NANWATCH_FAIL_FAST asked to stop at the first one.

    `requests` maps each corrupted request id of the step to its NaN values; `note` is what else
    whoever reads it has to know.
    """

    def __init__(self, requests: Mapping[str, int], note: str = "") -> None:
        self.requests = dict(requests)
        self.note = note
        super().__init__(f"NaNs detected in logits: {self.requests}{note}")

    def __reduce__(self) -> tuple[type["NanLogitsError"], tuple[Mapping[str, int], str]]:
        """Survive the way from a worker process to its parent."""
        return (type(self), (self.requests, self.note))


def raise_if_nan_logits(nans: Mapping[str, int]) -> None:
    """Raise if a request has NaNs: {"a": 0, "b": 5} raises for b; a clean mapping costs one look.

    Raises:
        NanLogitsError: names every request with a NaN.
    """
    if any(nans.values()):
        raise NanLogitsError({name: count for name, count in nans.items() if count})
