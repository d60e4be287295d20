"""The continuous batching of one model: every manager that is made for it.

Under fail-fast the step that made the NaN raises in the engine's thread, after the corrupted request was
written and before its token reaches anybody. The engine then fails every request it has, with a text for
each of its own (`GenerationOutput.error`, for streaming clients too; told.py), ends its thread and takes no
more: nobody waits for what will not come. `generate_batch` would return the failed outputs: it raises the
NanLogitsError instead, as generate() does.
"""

import logging
from contextvars import ContextVar
from importlib import import_module
from typing import Any
from weakref import WeakSet

from nanwatch.engines.guard import Guard
from nanwatch.engines.handle import Watch
from nanwatch.engines.huggingface.replaced_method import Method, ReplacedMethod
from nanwatch.engines.seams import MissingSeamError
from nanwatch.probe import NanProbe
from nanwatch.stop import abort_refused

from . import seams
from .manager import WatchedManager, is_watched
from .refusals import refuse_unless_verified

logger = logging.getLogger("nanwatch")

# The managers that the generate_batch() which runs in this thread was given.
_opened: ContextVar[list[WatchedManager] | None] = ContextVar("nanwatch_generate_batch", default=None)


class ContinuousWatcher:
    """Watches the managers of one model."""

    def __init__(self, probe: NanProbe) -> None:
        self._probe = probe
        self._guard = Guard("nanwatch, continuous batching", probe)
        self._managers: WeakSet[WatchedManager] = WeakSet()  # each lives as long as its manager

    def attach(self, model: Any, handle: Watch) -> None:
        """Watch each manager that the model hands out, until the handle is closed.

        A model without continuous batching is left alone; a version of Transformers that cannot be
        watched is one line in the log.
        """
        if not hasattr(model, "init_continuous_batching"):
            return
        try:
            seams.check(import_module(seams.MODULE))
        except (ImportError, MissingSeamError) as error:
            if self._probe.aborts:
                raise abort_refused(f"continuous batching cannot be watched: {error}") from error
            logger.warning("nanwatch does not look at continuous batching: %s", error)
            return
        handle.on_close(self.close)
        handle.on_close(ReplacedMethod(model, "init_continuous_batching", self._around_init).put_back)
        handle.on_close(ReplacedMethod(model, "generate_batch", around_generate_batch).put_back)

    def watch(self, manager: Any) -> None:
        """Watch this manager, unless somebody does already; what fails in it is logged.

        Raises:
            SettingsError: NANWATCH_ON_NAN=abort was not verified for how this manager works.
        """
        if is_watched(manager):
            return
        if self._probe.aborts:
            refuse_unless_verified(manager.model, manager)
        self._guard.run(self._watch, manager)
        if self._probe.aborts and not is_watched(manager):
            raise abort_refused("continuous batching could not be watched, see the log")

    def close(self) -> None:
        """Leave every manager as it was found."""
        for watched in list(self._managers):
            watched.put_back()

    def _watch(self, manager: Any) -> None:
        watched = WatchedManager(manager, self._probe, self._guard)
        self._managers.add(watched)
        opened = _opened.get()
        if opened is not None:
            opened.append(watched)

    def _around_init(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        manager = original(*args, **kwargs)
        self.watch(manager)
        return manager


def around_generate_batch(original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what generate_batch returns, or raise what fail-fast raised in the engine's thread."""
    opened: list[WatchedManager] = []
    token = _opened.set(opened)
    try:
        result = original(*args, **kwargs)
    finally:
        _opened.reset(token)
    for watched in opened:
        if watched.tripped is not None:
            raise watched.tripped
    return result
