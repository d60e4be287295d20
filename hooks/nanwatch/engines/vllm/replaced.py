"""A method of one object, replaced on that object alone; its class is left as it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

Method = Callable[..., Any]
Around = Callable[..., Any]  # (original, *args, **kwargs)


def replace(target: Any, name: str, around: Around) -> None:
    """Have `around(original, *args, **kwargs)` called for `target.name(*args, **kwargs)` from now on."""
    original = getattr(target, name)
    setattr(target, name, wraps(original)(_around(original, around)))


@contextmanager
def replaced(target: Any, name: str, around: Around) -> Iterator[None]:
    """Do the same for a while; what somebody else had put on the object is put back.

    Straight in its namespace: a module's own way of taking an attribute costs more than the step may.
    """
    place = vars(target)
    before = place.get(name)
    place[name] = _around(getattr(target, name), around)
    try:
        yield
    finally:
        if before is None:
            place.pop(name, None)
        else:
            place[name] = before


def _around(original: Method, around: Around) -> Method:
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return method
