"""Continuous batching of every model of the process, for who cannot touch the code that makes them."""

from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from nanwatch.engines.huggingface.probes import probe_of
from nanwatch.engines.huggingface.replaced_method import Method, ReplacedMethod

from . import seams
from .watcher import ContinuousWatcher, around_generate_batch

MODULE = seams.MODULE  # the one that attach takes
_MARK = "attached_by_nanwatch"

_watchers: WeakKeyDictionary[Any, ContinuousWatcher] = WeakKeyDictionary()


def attach(module: ModuleType) -> None:
    """Watch the continuous batching of every model, from now on; a second time does nothing.

    Args:
        module: MODULE, freshly imported.

    Raises:
        MissingSeamError: this version of Transformers has no such place to look at; nothing was changed.
    """
    mixin: Any = getattr(module, "ContinuousMixin", None)
    if hasattr(getattr(mixin, "init_continuous_batching", None), _MARK):
        return
    seams.check(module)
    _replace(mixin, "init_continuous_batching", _around_init)
    _replace(mixin, "generate_batch", lambda _model, *call: around_generate_batch(*call))


def _around_init(model: Any, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    manager = original(*args, **kwargs)
    if not isinstance(vars(model).get("init_continuous_batching"), ReplacedMethod):  # else: its own probe
        _watcher_of(model, counting=manager.is_tp_driver).watch(manager)
    return manager


def _watcher_of(model: Any, *, counting: bool) -> ContinuousWatcher:
    watcher = _watchers.get(model)
    if watcher is None:
        watcher = _watchers[model] = ContinuousWatcher(probe_of(model, counting=counting))
    return watcher


def _replace(owner: Any, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, partial(original, self), args, kwargs)

    setattr(replaced, _MARK, True)
    setattr(owner, name, replaced)
