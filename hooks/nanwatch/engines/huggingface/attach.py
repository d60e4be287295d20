"""generate() of every Transformers model of the process, without a line in the program.

    attach(transformers.generation.utils)
From then on a model is watched from its first generate() on, as watch_generate does it (automatic.py
says with which probe). Here is only the way there: GenerationMixin.generate, and the generate of each
class that has its own in place of it (Whisper's, say), those that are yet to be written too. This
module imports neither torch nor Transformers, so that a version it does not know breaks nothing.
"""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from nanwatch.engines.seams import MissingSeamError

_WRAPPED = "_nanwatch_generate"  # marks a function that is ours
_METHODS = ("generate", "_get_stopping_criteria")  # what watch_generate needs of a model


def attach(module: ModuleType) -> None:
    """Watch every model's generate(), given `transformers.generation.utils`; a second time does nothing.

    Raises:
        MissingSeamError: this version has no GenerationMixin with the methods that are hooked into.
    """
    mixin = getattr(module, "GenerationMixin", None)
    for method in _METHODS:
        if not callable(getattr(mixin, method, None)):
            raise MissingSeamError(f"there is no {module.__name__}.GenerationMixin.{method}")
    if isinstance(mixin, type) and not hasattr(mixin.__dict__["generate"], _WRAPPED):
        _see_subclasses_of(mixin)
        _wrap_family(mixin)


def _see_subclasses_of(mixin: Any) -> None:
    """Have each class that is made later looked at, as those that are there already."""
    original = mixin.__dict__.get("__init_subclass__")

    def see(cls: type, /, **kwargs: Any) -> None:
        if original is None:
            super(mixin, cls).__init_subclass__(**kwargs)
        else:
            original.__get__(None, cls)(**kwargs)
        _wrap(cls)

    mixin.__init_subclass__ = classmethod(see)


def _wrap_family(cls: type[Any]) -> None:
    _wrap(cls)
    for subclass in cls.__subclasses__():
        _wrap_family(subclass)


def _wrap(cls: Any) -> None:
    """Put the look before the class's own generate, if it has one."""
    own = cls.__dict__.get("generate")
    if callable(own) and not hasattr(own, _WRAPPED):
        cls.generate = _watched_from_the_first(own)


def _watched_from_the_first(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        from .automatic import watched_generate

        watched = watched_generate(self, kwargs)
        if watched is None:
            return original(self, *args, **kwargs)
        return watched.call(original.__get__(self), args, kwargs)

    setattr(generate, _WRAPPED, True)
    return generate
