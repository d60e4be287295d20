"""The entry point in `vllm.general_plugins`: vLLM calls it in every process of an engine.

That is the API server, the engine core, each worker and the process that inspects the model, most
of them forked later: so nothing is started here, and torch is not even imported. Only the method
that gives a worker its device is wrapped; it runs in workers alone.
"""

import os
from functools import wraps
from typing import Any

_NO = frozenset({"", "0", "false", "no", "off"})
_ASKS = {"NANWATCH_ENABLED": _NO, "NANWATCH_FAIL_FAST": _NO, "NANWATCH_ON_NAN": _NO | {"observe"}}
_MARK = "_nanwatch"

WORKER = "vllm.v1.worker.worker_base.WorkerWrapperBase.init_device"


def register() -> None:
    """Arm this process, if the environment asks for it.

    A variable that is not understood counts as asking: the worker says what is wrong with it.

    Raises:
        SettingsError: abort was asked for and cannot be had; nothing else is let out.
    """
    if not _is_asked_for():
        return
    from . import unknown

    try:
        arm()
        _arm_containment()
    except (ImportError, AttributeError) as error:
        _refuse_abort(error)
        unknown.say(unknown.missing([f"{WORKER} ({error})"]))
    except Exception as error:  # noqa: BLE001  whatever this vLLM is like, it starts as if nanwatch were not there
        _refuse_abort(error)
        unknown.say(error)


def arm() -> None:
    """Have nanwatch installed in each worker of this process, right after it has its device."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.init_device
    if getattr(original, _MARK, False):
        return

    @wraps(original)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        from .worker import attach

        attach(self.worker, self.vllm_config)
        return result

    setattr(init_device, _MARK, True)
    WorkerWrapperBase.init_device = init_device


def _arm_containment() -> None:
    if _asks_for_abort():
        from .containment import arming

        arming.arm()


def _refuse_abort(error: Exception) -> None:
    """Raise if abort was asked for: to run on and only look would be the silent wrong answer."""
    if _asks_for_abort():
        from nanwatch.stop import abort_refused

        raise abort_refused(f"this vLLM is another one ({type(error).__name__}: {error})") from error


def _asks_for_abort() -> bool:
    return os.environ.get("NANWATCH_ON_NAN", "").strip().lower() == "abort"


def _is_asked_for() -> bool:
    return any(os.environ.get(name, "").strip().lower() not in no for name, no in _ASKS.items())
