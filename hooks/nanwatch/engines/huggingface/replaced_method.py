"""A method of one object, a model say, replaced on that alone, and put back as if nothing had been."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

Method = Callable[..., Any]
Around = Callable[[Method, tuple[Any, ...], dict[str, Any]], Any]


class ReplacedMethod:
    """Calls `around(original, args, kwargs)` where the model's method `name` was called.

    A copy of the model, deep or pickled, gets its own method of that name: without this it would
    call the original's, on the original's weights.
    """

    def __init__(self, model: Any, name: str, around: Around) -> None:
        self._model, self._name = model, name
        self._original: Method = getattr(model, name)
        self._around: Around | None = around
        self._was_replaced = name in vars(model)
        update_wrapper(self, self._original)
        setattr(model, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, by way of `around` until it was put back."""
        around = self._around
        return self._original(*args, **kwargs) if around is None else around(self._original, args, kwargs)

    def call(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do so with another method in the original's place: one that was called before it was replaced."""
        if self._around is None:
            return original(*args, **kwargs)
        return self._around(original, args, kwargs)

    def put_back(self) -> None:
        """Leave the model with the method that it had.

        Where somebody has wrapped this one since, it stays inside and only passes calls on.
        """
        self._around = None
        if vars(self._model).get(self._name) is not self:
            return
        if self._was_replaced:
            setattr(self._model, self._name, self._original)
        else:
            delattr(self._model, self._name)

    def __reduce__(self) -> tuple[Callable[[Any, str], Any], tuple[Any, str]]:
        """Become the copy's own method; the copy is made before what it holds is."""
        return (getattr, (self._model, self._name))
