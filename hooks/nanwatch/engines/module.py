"""Any nn.Module that returns logits, or any other tensor with a row for each sample.

    handle = nanwatch.watch(classifier)                               # its logits
    handle = nanwatch.watch(encoder, output="pooler_output")          # embeddings [B, D]
    with nanwatch.request_ids(["a", "b"]):
        classifier(batch)                                             # [2, V]: row 0 is a's, row 1 is b's

    B = samples, T = positions, V = vocabulary (or the width of an embedding)
[B, V]: one row a sample. [B, T, V]: sample b owns all of its T rows. With B=2, T=3 the row ends are
[3, 6]: a NaN in row 4 is in position 1 of sample 1, and corrupts b.

With `request_ids` the requests live until that block ends, over as many forwards as it holds.
Without, each sample of each forward is a request of its own that ends with the forward.
Where ids and samples do not match in number, nobody is blamed: NaN rows are counted as unattributed.

The hook runs eagerly under torch.compile, outside of the graph: `torch.compile(module)` and
`module.compile()` still take fullgraph=True. A function of yours that calls the module and is compiled
itself gets one graph break at the hook, and refuses fullgraph=True.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nanwatch.probe import NanProbe
from nanwatch.request_scope import RequestScope, current_scope

from .forward_hook import ForwardHook
from .guard import Guard
from .handle import Watch
from .logits import Output, ends_of, find_logits, rows_per_sample
from .made_up_ids import made_up_ids


def watch(
    module: nn.Module,
    *,
    output: Output = None,
    probe: NanProbe | None = None,
    model_name: str | None = None,
    phase: str = "decode",
) -> Watch:
    """Count the NaNs in what `module` returns from now on, until the handle is closed.

    Args:
        module: watched through a forward hook; its outputs and gradients are left as they are.
        output: where the tensor is in the output, if it is not the output itself, its `logits`,
            its "logits" or the first item of a tuple: a key, an attribute, or a function of it.
        probe: the probe to use; without one the handle makes its own, and closes it.
        model_name: label of the handle's own probe, by default the class of the module.
        phase: what each forward is: prompt, prefill, decode or verify.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"watch takes a torch.nn.Module, got {type(module).__name__}")
    used = probe or NanProbe(model_name or type(module).__name__, device=device_of(module))
    handle = Watch(used, owns_probe=probe is None)
    guard = Guard("nanwatch.watch", used)
    hook = ForwardHook(_OutputWatcher(used, guard, output, phase).look, guard)
    handle.on_close(module.register_forward_hook(hook, with_kwargs=True).remove)
    return handle


def device_of(module: nn.Module) -> Any:
    """Return the device of the last parameter, where the logits come from; None if there is none."""
    return next((parameter.device for parameter in reversed(list(module.parameters()))), None)


class _OutputWatcher:
    """Finds the tensor in each output, and the requests that its samples belong to."""

    def __init__(self, probe: NanProbe, guard: Guard, output: Output, phase: str) -> None:
        self._probe, self._guard, self._output, self._phase = probe, guard, output, phase

    def look(self, output: Any, _kwargs: Mapping[str, Any]) -> None:
        """Observe one output of the module."""
        logits = find_logits(output, self._output)
        if logits is None:
            return
        scope = current_scope()
        if scope is None and logits.dim() > 1:
            self._observe_unnamed(logits)
        elif scope is not None and logits.dim() > 1 and len(scope.ids) == logits.shape[0]:
            self._observe_named(logits, scope)
        else:
            self._observe_unattributed(logits, scope)

    def _observe_unnamed(self, logits: Tensor) -> None:
        ids = made_up_ids(logits.shape[0])
        try:
            self._observe(logits, ids)
        finally:
            self._probe.finish(ids)

    def _observe_named(self, logits: Tensor, scope: RequestScope) -> None:
        try:
            self._observe(logits, scope.ids)
        finally:
            scope.at_exit(self, lambda: self._probe.finish(scope.ids))

    def _observe_unattributed(self, logits: Tensor, scope: RequestScope | None) -> None:
        named = "no request ids" if scope is None else f"{len(scope.ids)} request ids"
        self._guard.say(
            "samples",
            f"{named} for an output of shape {list(logits.shape)}, expected one id for each sample of "
            "[B, V] or [B, T, V]: its NaN rows are counted as unattributed",
        )
        self._probe.observe(logits, None, phase=self._phase)

    def _observe(self, logits: Tensor, ids: list[str]) -> None:
        ends = ends_of(logits.shape[0], rows_per_sample(logits))
        self._probe.observe(logits, ids, row_ends=ends, phase=self._phase)
