"""One manager of the engine: the batch processors that it makes, and when its requests end.

finished, failed     as their last output is delivered, and before it is: who has it may use the id again
cancelled            as the scheduler drops them; nothing is delivered (processor.py)
offloaded            not an end: the request goes on under its id, and its earlier step is thrown away
forked               the children get ids of their own, `req_0__child#0`, from their first row on
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from weakref import ref

from nanwatch.engines.guard import DROP_REASON, Guard
from nanwatch.engines.huggingface.replaced_method import Method, ReplacedMethod
from nanwatch.failfast import NanLogitsError
from nanwatch.probe import NanProbe
from nanwatch.stop import abort_refused

from .processor import WatchedProcessor
from .told import told_to


def is_watched(manager: Any) -> bool:
    """Whether somebody watches this manager."""
    return isinstance(vars(manager).get("_create_batch_processor"), ReplacedMethod)


class WatchedManager:
    """Watches one ContinuousBatchingManager until it is put back.

    Attributes:
        tripped: what fail-fast raised first in this manager's thread, since it was started.
    """

    def __init__(self, manager: Any, probe: NanProbe, guard: Guard) -> None:
        self._probe, self._guard = probe, guard
        self.tripped: NanLogitsError | None = None
        # Held weakly: with its processor goes the cache, which the engine wants back as it stops.
        self._processor: Callable[[], Any] = _nothing
        self._watched: Callable[[], WatchedProcessor | None] = _nothing
        self._undo = ExitStack()
        try:
            self._attach(manager)
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Leave the manager as it was found."""
        self._undo.close()
        watched = self._watched()
        if watched is not None:
            watched.put_back()

    def _attach(self, manager: Any) -> None:
        if manager.is_running():
            self._guard.say(
                "running",
                "continuous batching was started before it was watched: its requests are not counted "
                "until it is stopped and started anew",
            )
            self._probe.drop(DROP_REASON)
        elif manager.batch_processor is not None:
            # What it has captured writes into buffers that have no place for counts: it is made anew.
            manager.batch_processor, manager.warmed_up = None, False
        self._replace(manager, "_create_batch_processor", self._around_create)
        self._replace(manager.output_router, "deliver", self._around_deliver)
        self._replace(manager.output_router, "deliver_batch", self._around_deliver_batch)
        self._replace(manager.output_router, "fail_and_deliver", self._around_failure)

    def _replace(self, owner: Any, name: str, around: Any) -> None:
        self._undo.callback(ReplacedMethod(owner, name, around).put_back)

    def _around_create(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        processor = original(*args, **kwargs)
        if processor is not self._processor():
            is_watched_now = self._guard.run(self._watch, processor)
            if self._probe.aborts and not is_watched_now:
                raise abort_refused("continuous batching could not be watched, see the log")
        return processor

    def _watch(self, processor: Any) -> bool:
        self._processor, self.tripped = ref(processor), None
        self._watched = ref(WatchedProcessor(processor, self._probe, self._guard, self._note_trip))
        return True

    def _note_trip(self, error: NanLogitsError) -> None:
        """Keep the first: what is still in flight then often holds NaN too, and stops nothing any more."""
        if self.tripped is None:
            self.tripped = error

    def _around_deliver(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._guard.run(self._finish_ended, [*args, *kwargs.values()])
        return original(*args, **kwargs)

    def _around_deliver_batch(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._guard.run(self._finish_ended, *args, *kwargs.values())
        return original(*args, **kwargs)

    def _around_failure(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        told = self._guard.run(self._told, *args, **kwargs)
        return original(*args, **kwargs) if told is None else original(*told)

    def _told(self, state: Any, error: Exception) -> tuple[Any, Exception]:
        """Return the call's arguments, with what stopped the engine in the words for this client.

        While the engine goes on, an error that names NaN is for the request that abort ends and its forks.
        """
        if self.tripped is None or not isinstance(error, NanLogitsError):
            return state, error
        return state, told_to(state.request_id, error)

    def _finish_ended(self, outputs: Iterable[Any]) -> None:
        ended = [output.request_id for output in outputs if output.is_finished()]
        if ended:
            self._probe.finish(ended)


def _nothing() -> None:
    """Stand for a weak reference whose object is gone."""
