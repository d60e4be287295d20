"""Watches a model that nobody watches yet, with a probe that models of the same name share.

    first generate()        watch_generate(model, probe=the probe of its name and device)
    an assistant's draft    left alone: the model that it drafts for is what is served
    watch_generate(model)   by the program itself goes before: this watch gives way to it
    the model is collected  the last one of its name takes the probe with it
The watch lies on the model, in a cycle with it: nothing else holds either.
"""

import os
import threading
import weakref
from typing import Any

from torch import nn

from nanwatch.attach import cannot_look
from nanwatch.engines.handle import Watch
from nanwatch.settings import SettingsError

from .replaced_method import ReplacedMethod
from .shared_probes import PROBES

_KEEPER = "_get_stopping_criteria"  # the replaced method that holds the handle; nobody else replaces it
_HANDLE, _GENERATE = "nanwatch_handle", "nanwatch_generate"

_beginning = threading.Lock()


def watched_generate(model: nn.Module, arguments: dict[str, Any]) -> ReplacedMethod | None:
    """Return what a call of a class's generate(), with these arguments, is to go through.

    A call that comes in on the class is the first one, or one of a method that was looked up before
    the first: both are counted. None where it goes on by itself: inside a call of the same model that
    is counted already, in a draft, or where the model cannot be watched.

    Raises:
        SettingsError: fail-fast is meant, and the environment is not understood.
    """
    if not _is_watched(model) and (_is_draft(arguments) or not _begin(model)):
        return None
    from .generate import is_in_generate_of

    return None if is_in_generate_of(model) else _replaced(model)


def give_way(model: nn.Module) -> None:
    """End the watch that was begun here, if there is one: the program watches this model itself."""
    handle = _kept(model, _HANDLE)
    if isinstance(handle, Watch):
        handle.close()


def _begin(model: nn.Module) -> bool:
    with _beginning:
        if _is_watched(model):  # by another thread, just now
            return True
        try:
            _watch(model)
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001  the model generates all the same
            cannot_look("transformers", error)
            return False
        return True


def _watch(model: nn.Module) -> None:
    from .generate import watch_generate

    probe, key = PROBES.take(model)
    try:
        handle = watch_generate(model, probe=probe)
    except BaseException:
        PROBES.leave(key)
        raise
    members = vars(model)
    vars(members[_KEEPER]).update({_HANDLE: handle, _GENERATE: members["generate"]})
    left = weakref.finalize(model, PROBES.leave, key)
    left.atexit = False  # every probe is closed at exit anyway
    handle.on_close(left)


def _replaced(model: nn.Module) -> ReplacedMethod | None:
    """Return the model's own generate, also where somebody has put theirs over it since."""
    own = vars(model).get("generate")
    found = own if isinstance(own, ReplacedMethod) else _kept(model, _GENERATE)
    return found if isinstance(found, ReplacedMethod) else None


def _kept(model: nn.Module, name: str) -> object:
    keeper = vars(model).get(_KEEPER)
    return vars(keeper).get(name) if isinstance(keeper, ReplacedMethod) else None


def _is_watched(model: nn.Module) -> bool:
    return isinstance(vars(model).get(_KEEPER), ReplacedMethod)


def _is_draft(arguments: dict[str, Any]) -> bool:
    """Whether an assisted generate() asks its assistant for candidates."""
    return bool(getattr(arguments.get("generation_config"), "is_assistant", False))


def _forget_parent() -> None:
    global _beginning  # noqa: PLW0603  a fork may come while another thread holds it
    _beginning = threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
