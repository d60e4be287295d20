"""The model as the engine calls it, with a count of NaNs behind each forward.

    R = places for predictions in the batch, V = vocabulary
Continuous batching hands the model to one function that makes logits, processes and samples them; it may
be compiled, or captured in a CUDA graph. Calling this one instead makes the count a part of the same
graph, before anything changes the logits: a replay counts too, and no Python runs for it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .room import Room

ROOM = "nanwatch_room"  # the key under which the engine's arguments carry the place for the counts


class CountingModel:
    """Calls the model; has the NaNs in each row of its logits counted into the Room that its arguments name.

    Everything else that is asked of it, the model answers. What fails in the counting is not to reach the
    engine: `failed` is told. With `for_sampling` a NaN is handed on as 0, once it was counted: drawing from
    NaN raises for the whole batch, on a GPU in the device itself, where one request is to be ended.
    """

    def __init__(
        self, model: Any, failed: Callable[[Exception], None], *, for_sampling: bool = False
    ) -> None:
        self._model, self._failed, self._for_sampling = model, failed, for_sampling

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns.

        Compiled, the count is traced with the rest; the shortcuts of the CPU are for the eager run, and so
        is the copy to host memory: a compiler would make it one that waits.
        """
        room: Room = kwargs.pop(ROOM)
        output = self._model(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            counts = torch.isnan(_rows(output, kwargs)[0]).sum(-1, dtype=torch.int32)
            room.row[: counts.shape[0]].copy_(counts)
            return output
        try:
            room.count(_rows(output, kwargs))
        except Exception as error:  # noqa: BLE001  whatever it is, the engine is not to notice
            self._failed(error)
        if self._for_sampling and not room.is_clean:
            self._zero_nans(output)
        return output

    def _zero_nans(self, output: Any) -> None:
        """Put 0 for NaN in place, also where the count failed; infinities stay."""
        try:
            output.logits.nan_to_num_(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
        except Exception as error:  # noqa: BLE001  as above
            self._failed(error)


def _rows(output: Any, kwargs: dict[str, Any]) -> Tensor:
    """Return the logits [1, R, V]: models that cannot leave out positions return them all [1, T, V]."""
    logits: Tensor = output.logits
    return logits if "logits_to_keep" in kwargs else logits[:, kwargs["logits_indices"]]
