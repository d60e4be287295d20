"""Batch-sharded sampling (second runner): each tensor rank samples the requests that it owns.

The logits are then exchanged between the ranks and not made by `compute_logits`; each rank sees
[R_own, V] of its own requests only, laid out by a batch of its own.
    shard_sampler_inputs   says that batch
    all_to_all_logits      returns the raw logits, padded to the full width of the vocabulary
A request stays with its rank, so every rank counts, each its own. Off unless vLLM was told
enable_batch_sharded_sampling.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .replaced import replace

EXCHANGE = "all_to_all_logits"

Look = Callable[[Tensor, Any], None]  # (raw logits [R_own, V], the rank's own batch)


class Exchange:
    """Shows the logits that a rank gets in exchange to `look`."""

    def __init__(self, runner: Any, look: Look) -> None:
        self._runner, self._look = runner, look
        self._batch: Any = None

    def install(self) -> None:
        """Listen to both; the exchange is a function of the runner's module, found where it is called.

        Raises:
            LookupError: there is no such function.
        """
        home = inspect.unwrap(type(self._runner).sample).__globals__
        original = home[EXCHANGE]
        replace(self._runner.batch_sharder, "shard_sampler_inputs", self._shard)

        def all_to_all_logits(*args: Any, **kwargs: Any) -> Any:
            logits = original(*args, **kwargs)
            batch, self._batch = self._batch, None
            if batch is not None:
                self._look(logits[:, : self._runner.vocab_size], batch)
            return logits

        home[EXCHANGE] = all_to_all_logits

    def _shard(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        shards = original(*args, **kwargs)
        self._batch = shards[0]
        return shards
