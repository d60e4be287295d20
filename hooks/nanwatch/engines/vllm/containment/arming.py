"""Puts the sides in place, in whichever of vLLM's processes this is.

API server   create_engine_config   refuses before anything is started; then client_side
EngineCore   Scheduler.__init__     refuses a KV cache that was not verified; then scheduler_side
worker       worker.attach          refuses too: it may have been started without the others
"""

from functools import wraps
from typing import Any

from nanwatch.settings import OnNan, Settings, SettingsError

from . import client_side, verified
from .scheduler_side import SchedulerSide

_MARK = "_nanwatch"


def is_asked_for() -> bool:
    """Whether the environment says abort; one that is not understood is the worker's to refuse."""
    try:
        return Settings.from_environment().on_nan is OnNan.ABORT
    except SettingsError:
        return False


def arm() -> None:
    """Have every scheduler of this process end corrupted requests, and every configuration checked.

    Raises:
        ImportError, AttributeError: this vLLM is another one; the worker refuses its version.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler

    _after(EngineArgs, "create_engine_config", _check_configuration)
    _after(Scheduler, "__init__", lambda scheduler, _: _take_over(scheduler))


def refuse_unverified(vllm_config: Any) -> None:
    """Raise unless `abort` was verified with this vLLM, in these modes.

    Raises:
        SettingsError: one line with the reason, and what to use instead.
    """
    import vllm

    verified.refuse_version(vllm.__version__)
    verified.refuse_config(vllm_config)


def _check_configuration(_: Any, vllm_config: Any) -> None:
    refuse_unverified(vllm_config)
    client_side.install()


def _take_over(scheduler: Any) -> None:
    refuse_unverified(scheduler.vllm_config)
    verified.refuse_cache(scheduler.kv_cache_config)
    SchedulerSide(scheduler).install()


def _after(owner: Any, name: str, then: Any) -> None:
    """Have `then(self, result)` called whenever the method of this class has returned; once a process."""
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        then(self, result)
        return result

    setattr(method, _MARK, True)
    setattr(owner, name, method)
