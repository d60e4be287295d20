"""What travels between worker and scheduler: with a step's output, and with the next step.

Both are plain attributes of vLLM's own messages, which are pickled whole where the worker is another
process. vLLM's field num_nans_in_logits is left to vLLM: its own check, where it is switched on, takes
row i for request i, and with drafts that ends somebody else.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

_NAME = "nanwatch"


class Scan(NamedTuple):
    """Which of the blocks that an order asked about hold NaN."""

    order: int  # its number
    poisoned: frozenset[int]


class Finding(NamedTuple):
    """From the worker: NaN values by internal request id, and what scans have found since the last one."""

    nans: Mapping[str, int]
    scans: tuple[Scan, ...] = ()


class Order(NamedTuple):
    """To every worker: blocks to scan, then blocks to zero, before the step that it comes with.

    The last three are only for the metrics: how many were ended, held back and given back since the
    last order.
    """

    number: int
    scan: tuple[int, ...] = ()
    zero: tuple[int, ...] = ()
    aborted: int = 0
    quarantined: int = 0
    released: int = 0


def attach(message: Any, what: Finding | Order) -> None:
    """Send `what` along with a step, or with its output."""
    setattr(message, _NAME, what)


def finding_of(output: Any) -> Finding | None:
    """Return what came with a step's output, if anything."""
    return getattr(output, _NAME, None)


def order_of(scheduler_output: Any) -> Order | None:
    """Return what came with a step, if anything."""
    return getattr(scheduler_output, _NAME, None)
