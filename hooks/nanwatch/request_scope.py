"""Which requests the rows of a forward belong to, said by whoever serves them.

    with nanwatch.request_ids(["cmpl-1", "cmpl-2"]):
        model(**batch)          # sample 0 is cmpl-1's, sample 1 is cmpl-2's

The ids are held in a ContextVar, so two threads, or two tasks of one event loop, never see each
other's. A thread that is started inside the block starts without them, unless its function is run
by `contextvars.copy_context().run`; `asyncio.to_thread` does that by itself.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from .attribution import check_ids


class RequestScope:
    """One block of `with request_ids(...)`: its ids, and what is to be done at its end."""

    __slots__ = ("_at_exit", "_closed", "ids")

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self._at_exit: dict[object, Callable[[], object]] = {}
        self._closed = False

    def at_exit(self, key: object, action: Callable[[], object]) -> None:
        """Have `action` called when the block ends, once for each `key`; at once if it has ended.

        It has ended where a thread got a copy of the context and outlived the block.
        """
        if self._closed:
            action()
        else:
            self._at_exit[key] = action

    def close(self) -> None:
        """Do what was asked for."""
        self._closed = True
        for action in list(self._at_exit.values()):
            action()


_current: ContextVar[RequestScope | None] = ContextVar("nanwatch_request_ids", default=None)


def current_scope() -> RequestScope | None:
    """Return the innermost block that this thread, or task, is in."""
    return _current.get()


def request_ids(ids: Iterable[str]) -> AbstractContextManager[list[str]]:
    """Name the requests of the batch that runs inside the block, one id for each sample, in order.

    Raises:
        TypeError: an id is no string, or `ids` is itself one string.
        ValueError: an id stands twice.
    """
    if isinstance(ids, str):
        raise TypeError(f"request_ids takes one id for each sample, found the single string {ids!r}")
    listed = list(ids)
    check_ids(listed)
    return _entered(listed)


@contextmanager
def _entered(ids: list[str]) -> Iterator[list[str]]:
    scope = RequestScope(ids)
    token = _current.set(scope)
    try:
        yield ids
    finally:
        _current.reset(token)
        scope.close()
