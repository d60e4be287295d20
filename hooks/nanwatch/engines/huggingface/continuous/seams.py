"""What of the engine continuous batching is watched through, by name: a version without it is not watched."""

import inspect
from types import ModuleType
from typing import Any

from nanwatch.engines.seams import MissingSeamError

MODULE = "transformers.generation.continuous_batching.continuous_api"

# class, method -> the first parameters that are relied on, after self
_METHODS = {
    ("ContinuousMixin", "init_continuous_batching"): (),
    ("ContinuousMixin", "generate_batch"): (),
    ("ContinuousBatchingManager", "_create_batch_processor"): (),
    ("ContinuousBatchProcessor", "fail_all_requests"): ("error",),
    ("ModelRunner", "compute_batch"): ("model", "batch_data"),
    ("ModelRunner", "run_one_warmup"): ("model",),
    ("ContinuousBatchingIOs", "prepare_batch_update"): (),
    ("ContinuousBatchingAsyncIOs", "prepare_batch_update"): (),
    ("OutputRouter", "deliver"): ("output",),
    ("OutputRouter", "deliver_batch"): ("outputs",),
    ("OutputRouter", "fail_and_deliver"): ("state", "error"),
    ("Scheduler", "clear_cancelled_requests"): (),
    ("BackgroundThreadStatus", "record_fatal_error"): ("error",),
}


def check(module: ModuleType | Any) -> None:
    """Look for every seam in the engine's continuous_api.

    Raises:
        MissingSeamError: one is not there, or takes other parameters.
    """
    for (owner, name), expected in _METHODS.items():
        method = getattr(getattr(module, owner, None), name, None)
        if not callable(method):
            raise MissingSeamError(f"{MODULE} has no {owner}.{name}")
        found = tuple(inspect.signature(method).parameters)[1 : len(expected) + 1]
        if found != expected:
            raise MissingSeamError(f"{owner}.{name} of {MODULE} takes {found}, not {expected}")
