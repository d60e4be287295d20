"""A forward hook that sees every output, never breaks a forward and never goes along with a copy.

- It runs eagerly under torch.compile: `torch.compiler.disable` keeps it out of the graph. A hook that
  asked `is_compiling()` instead would be traced away, and silently never run.
- A copy of the module, deep or pickled, takes no hook with it: a probe belongs to one process.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .guard import Guard

Look = Callable[[Any, Mapping[str, Any]], None]  # (output, keyword arguments of the forward)


class ForwardHook:
    """Shows each output of a module to `look`."""

    def __init__(self, look: Look, guard: Guard) -> None:
        self._look, self._guard = look, guard

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, _module: nn.Module, _args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        """Look at one output; the forward returns it unchanged."""
        with torch.no_grad():
            self._guard.run(self._look, output, kwargs)

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        """Become a hook that does nothing where the module is copied or pickled."""
        return (_hook_of_a_copy, ())


def _hook_of_a_copy() -> Callable[..., None]:
    return _look_away


def _look_away(*_: object) -> None:
    """Do nothing."""
