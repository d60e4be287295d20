"""Watches a model that nobody watches yet, with a probe that models of the same name share.

    first generate()        watch_generate(model, probe=the probe of its name and device)
    an assistant's draft    left alone: the model that it drafts for is what is served
    watch_generate(model)   by the program itself goes before: this watch gives way to it
    the model is collected  the last one of its name takes the probe with it
The watch lies on the model, in a cycle with it: nothing else holds either.
"""

import weakref
from typing import Any

from torch import nn

from nanwatch.attach import cannot_look
from nanwatch.engines.handle import Watch
from nanwatch.settings import SettingsError

from .replaced_method import ReplacedMethod
from .shared_probes import PROBES

_KEEPER = "_get_stopping_criteria"  # the replaced method that holds the handle; nobody else replaces it
_HANDLE = "nanwatch_handle"


def watch_if_new(model: nn.Module, arguments: dict[str, Any]) -> ReplacedMethod | None:
    """Watch a model whose generate() is being called with these arguments.

    Returns the model's new generate, None where it is watched already, or is not to be.

    Raises:
        SettingsError: fail-fast is meant, and the environment is not understood.
    """
    if _is_watched(model) or _is_draft(arguments):
        return None
    try:
        _watch(model)
    except SettingsError:
        raise
    except Exception as error:  # noqa: BLE001  the model generates all the same
        cannot_look("transformers", error)
        return None
    replaced: ReplacedMethod = vars(model)["generate"]
    return replaced


def give_way(model: nn.Module) -> None:
    """End the watch that was begun here, if there is one: the program watches this model itself."""
    keeper = vars(model).get(_KEEPER)
    handle = vars(keeper).get(_HANDLE) if isinstance(keeper, ReplacedMethod) else None
    if isinstance(handle, Watch):
        handle.close()


def _watch(model: nn.Module) -> None:
    from .generate import watch_generate

    probe, key = PROBES.take(model)
    try:
        handle = watch_generate(model, probe=probe)
    except BaseException:
        PROBES.leave(key)
        raise
    vars(vars(model)[_KEEPER])[_HANDLE] = handle
    left = weakref.finalize(model, PROBES.leave, key)
    left.atexit = False  # every probe is closed at exit anyway
    handle.on_close(left)


def _is_watched(model: nn.Module) -> bool:
    return isinstance(vars(model).get(_KEEPER), ReplacedMethod)


def _is_draft(arguments: dict[str, Any]) -> bool:
    """Whether an assisted generate() asks its assistant for candidates."""
    return bool(getattr(arguments.get("generation_config"), "is_assistant", False))
