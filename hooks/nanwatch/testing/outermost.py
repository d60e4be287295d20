"""Looks at the logits of every forward in the process, through hooks on all modules.

    B = samples, T = positions, V = vocabulary
A module counts if its output has `.logits` or "logits", a floating tensor [B, V] or [B, T, V], and no
module around it gives logits too: of a wrapper, a model and its router, the wrapper's are what the
caller gets.
    Wrapper(                     leaves second, with logits: they are looked at, the model's are not
        Model(                   leaves first, with logits: kept until it is known what is around it
            Router(...)))        leaves before it, with logits: superseded by the model's
Inside a graph of torch.compile nothing is seen, so as not to break it; what a compiled module returns is.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Look = Callable[[nn.Module, Tensor], None]
Skip = Callable[[], bool]


class OutermostLogits:
    """Shows each logits tensor that a caller gets to `look`, unless `skip` says so when it is made."""

    def __init__(self, look: Look, skip: Skip) -> None:
        self._look, self._skip = look, skip
        self.start_anew()

    def install(self) -> None:
        """Hook on to every module of the process, for good."""
        hooks = nn.modules.module
        hooks.register_module_forward_pre_hook(self._enter)
        hooks.register_module_forward_hook(self._leave, always_call=True)

    def start_anew(self) -> None:
        """Forget forwards that never came to an end: an exit or an interrupt went through them."""
        self._threads = threading.local()

    def _enter(self, _module: nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        inside, kept = self._state()
        inside.append(len(kept))

    def _leave(self, module: nn.Module, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        inside, kept = self._state()
        if not inside:
            return  # it was entered before we were there
        since = inside.pop()
        logits = _logits_in(output)
        if logits is not None and not self._skip():
            kept[since:] = [(module, logits)]
        if not inside:
            self._look_at(kept)

    def _look_at(self, kept: list[tuple[nn.Module, Tensor]]) -> None:
        found, kept[:] = list(kept), []
        with torch.no_grad():
            for module, logits in found:
                self._look(module, logits)

    def _state(self) -> tuple[list[int], list[tuple[nn.Module, Tensor]]]:
        """Return, for this thread, where each open forward's logits begin in those that are kept."""
        if not hasattr(self._threads, "state"):
            self._threads.state = ([], [])
        state: tuple[list[int], list[tuple[nn.Module, Tensor]]] = self._threads.state
        return state


def _logits_in(output: Any) -> Tensor | None:
    if output is None or isinstance(output, Tensor):
        return None
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    rows = isinstance(found, Tensor) and found.is_floating_point() and found.dim() > 1
    return found if rows else None
