"""`transformers serve`: the X-Request-Id of each HTTP request is the id of its request here.

With --continuous-batching the server hands that id to the manager, and nothing is left to do here. Without,
it answers one request after the other with generate(), in a thread of its own: the id is known where the
work is ordered, on the event loop, and has to go along with it to that thread.
    generate_streaming, generate_non_streaming    take the id, among the rest
    submit, async_submit                          called by those two, take a function for the thread
    a transcription                               knows its id from the HTTP request alone
A client that sends no X-Request-Id finds the server's own in the headers of the response.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any

from nanwatch.engines.seams import MissingSeamError
from nanwatch.request_scope import request_ids

MODULE = "transformers.cli.serving.utils"
TRANSCRIPTION_MODULE = "transformers.cli.serving.transcription"
_MARK = "attached_by_nanwatch"

FindId = Callable[[tuple[Any, ...], dict[str, Any]], str | None]  # of a call's arguments

_current: ContextVar[str | None] = ContextVar("nanwatch_http_request", default=None)


def attach(module: ModuleType) -> None:
    """Name the requests that the server answers with generate(); a second time does nothing.

    Args:
        module: MODULE, freshly imported.

    Raises:
        MissingSeamError: this version of Transformers has no such place; nothing was changed.
    """
    manager: Any = getattr(module, "GenerateManager", None)
    if hasattr(getattr(manager, "submit", None), _MARK):
        return
    where = f"GenerateManager of {MODULE}"
    streaming = _method(manager, "generate_streaming", "request_id", where)
    non_streaming = _method(manager, "generate_non_streaming", "request_id", where)
    submits = {name: _method(manager, name, "fn", where) for name in ("submit", "async_submit")}
    _replace(manager, "generate_streaming", _naming_call(streaming))
    _replace(
        manager, "generate_non_streaming", _naming_coroutine(non_streaming, _request_id_of(non_streaming))
    )
    for name, submit in submits.items():
        _replace(manager, name, _taking_the_name_along(submit))


def attach_transcription(module: ModuleType) -> None:
    """Name the requests of /v1/audio/transcriptions; a second time does nothing.

    Args:
        module: TRANSCRIPTION_MODULE, freshly imported.

    Raises:
        MissingSeamError: this version of Transformers has no such place; nothing was changed.
    """
    handler: Any = getattr(module, "TranscriptionHandler", None)
    handle = _method(handler, "handle_request", "request", f"TranscriptionHandler of {TRANSCRIPTION_MODULE}")
    if not hasattr(handle, _MARK):
        _replace(handler, "handle_request", _naming_coroutine(handle, _request_id_of_http(handle)))


def _method(owner: Any, name: str, parameter: str, where: str) -> Callable[..., Any]:
    method: Callable[..., Any] | None = getattr(owner, name, None)
    if not callable(method):
        raise MissingSeamError(f"{where} has no {name}")
    if parameter not in inspect.signature(method).parameters:
        raise MissingSeamError(f"{where}: {name} takes no {parameter}")
    return method


def _replace(owner: Any, name: str, replaced: Callable[..., Any]) -> None:
    setattr(replaced, _MARK, True)
    setattr(owner, name, replaced)


def _naming_call(original: Callable[..., Any]) -> Callable[..., Any]:
    request_id_of = _request_id_of(original)

    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        with _named(request_id_of(args, kwargs)):
            return original(*args, **kwargs)

    return replaced


def _naming_coroutine(original: Callable[..., Awaitable[Any]], request_id_of: FindId) -> Callable[..., Any]:
    @wraps(original)
    async def replaced(*args: Any, **kwargs: Any) -> Any:
        with _named(request_id_of(args, kwargs)):
            return await original(*args, **kwargs)

    return replaced


def _taking_the_name_along(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def replaced(self: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        request_id = _current.get()
        return original(self, fn if request_id is None else _in_scope(fn, request_id), *args, **kwargs)

    return replaced


def _in_scope(work: Callable[..., Any], request_id: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with request_ids([request_id]):
            return work(*args, **kwargs)

    return run


def _request_id_of(method: Callable[..., Any]) -> FindId:
    return _argument_of(method, "request_id")


def _request_id_of_http(method: Callable[..., Any]) -> FindId:
    argument = _argument_of(method, "request")

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        return getattr(getattr(argument(args, kwargs), "state", None), "request_id", None)

    return find


def _argument_of(method: Callable[..., Any], name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return what finds the argument `name` in a call of the method, by its place or its name."""
    place = list(inspect.signature(method).parameters).index(name)
    return lambda args, kwargs: kwargs.get(name, args[place] if place < len(args) else None)


@contextmanager
def _named(request_id: str | None) -> Iterator[None]:
    token = _current.set(request_id)
    try:
        yield
    finally:
        _current.reset(token)
