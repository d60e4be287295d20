"""A kernel that fails now and then: NaN in one request's part of a batch, at a place inside the model.

    embedding   before the first layer: bad from the KV of layer 0 on
    layer       behind the first layer: bad from the KV of layer 1 on
    attention   behind the last KV, before the last layer's end: in no KV, in the request's row alone
    head        in the request's logits row alone
It stands for a fault of hardware or of a kernel; the engine, and the model around it, are real. What a
batch holds is read off the engine at the moment when it launches it.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

NAN = float("nan")


@dataclass
class Fault:
    """Fires so many times for a request, once it was given so many tokens."""

    request_id: str
    after_tokens: int = 0
    place: str = "embedding"
    times: int = 1
    fired: int = 0

    def fires(self, state: Any) -> bool:
        if state.request_id != self.request_id or self.fired >= self.times:
            return False
        prompt = state._true_initial_tokens or len(state.initial_tokens)
        made = len(state.initial_tokens) - prompt + len(state.generated_tokens)
        return made >= self.after_tokens


@contextmanager
def flaky(model: Any, manager: Any, faults: Sequence[Fault]) -> Iterator[None]:
    """Let the faults happen in the model while this manager runs it."""

    def spoil(place: str, output: Tensor, *, by_row: bool) -> None:
        begin = row = 0
        for scheduled in _launching(manager):
            end = begin + scheduled.query_length
            for fault in faults:
                if (
                    fault.place == place
                    and (scheduled.has_new_token or not by_row)
                    and fault.fires(scheduled.state)
                ):
                    fault.fired += 1
                    output[0, row if by_row else slice(begin, end)] = NAN
            begin, row = end, row + bool(scheduled.has_new_token)

    def hooked(place: str, *, by_row: bool = False) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            spoil(place, output[0] if isinstance(output, tuple) else output, by_row=by_row)

        return hook

    layers = model.model.layers
    with ExitStack() as stack:
        for module, hook in (
            (model.get_input_embeddings(), hooked("embedding")),
            (layers[0], hooked("layer")),
            (layers[-1].mlp, hooked("attention")),
            (model.get_output_embeddings(), hooked("head", by_row=True)),
        ):
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def _launching(manager: Any) -> list[Any]:
    """Return what is scheduled in the batch that the model is run for just now."""
    ios = manager.batch_processor.inputs_and_outputs
    if hasattr(ios, "io_pairs"):
        ios = ios.io_pairs[ios.current_pair].host_io
    return list(ios.requests_in_batch)
