"""Whether every number of a demo came out as planted; pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

WELL = 0
CAME_OUT_WRONG = 1
DIED_OF_NAN = 70


@dataclass(slots=True)
class Planted:
    """What the demo did itself."""

    requests: int = 0
    corrupted_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reported:
    """What the sidecar says of it: counters since the demo began, and the ids that it lists."""

    requests: int
    corrupted_requests: int
    corrupted_ids: tuple[str, ...]
    unattributed_nan_rows: int = 0
    dropped_steps: int = 0


def differences(planted: Planted, reported: Reported) -> list[str]:
    """Return one sentence for each number that is not as planted; none: all is well."""
    compared = (
        ("corrupted_requests_total", reported.corrupted_requests, len(planted.corrupted_ids)),
        ("nanwatch_requests_total", reported.requests, planted.requests),
        ("nanwatch_unattributed_nan_rows_total", reported.unattributed_nan_rows, 0),
        ("nanwatch_dropped_steps_total", reported.dropped_steps, 0),
    )
    wrong = [
        f"{name} is {found}, expected {expected}" for name, found, expected in compared if found != expected
    ]
    return wrong + list(_id_differences(planted.corrupted_ids, reported.corrupted_ids))


def _id_differences(planted: Iterable[str], reported: Iterable[str]) -> Iterable[str]:
    missing, unplanted = set(planted) - set(reported), set(reported) - set(planted)
    if missing:
        yield f"poisoned but not in /v1/corrupted-requests: {', '.join(sorted(missing))}"
    if unplanted:
        yield f"in /v1/corrupted-requests but not poisoned: {', '.join(sorted(unplanted))}"
