"""A worker has its device: find out where it stands and what runs there, and install.

Whatever goes wrong here is one line in the log, and the worker goes on as if nanwatch were not
there; save a fail-fast setting that is not understood, or that cannot be had: running on blindly
would be the one wrong answer, so that the worker does not start.
"""

import logging
from typing import Any

from nanwatch.engines.guard import Guard
from nanwatch.probe import NanProbe
from nanwatch.settings import Settings, SettingsError
from nanwatch.stop import abort_refused

from . import seams, unknown
from .client_ids import client_id
from .containment import arming
from .containment.worker_side import EveryRank, WorkerSide
from .output import Outlet
from .ranks import Place, place_of
from .replaced import replace
from .v1 import V1
from .v2 import V2

RUNTIME = "vllm"

logger = logging.getLogger("nanwatch")


def attach(worker: Any, vllm_config: Any, *, loaded: bool = False) -> None:
    """Install nanwatch in one worker, where it has something to look at.

    Raises:
        SettingsError: fail-fast was meant, and a variable is not understood; or abort cannot be had.
    """
    try:
        _speak_in_the_log_of_vllm()
        sharded = getattr(vllm_config.parallel_config, "enable_batch_sharded_sampling", False)
        if sharded and not loaded:
            # Only a loaded model tells whether it can be; if it can, every rank counts.
            replace(worker, "load_model", _attaching_after(worker, vllm_config))
        else:
            _attach(worker, vllm_config)
    except SettingsError:
        raise
    except Exception as error:  # not knowing this vLLM is no reason for it not to start
        if arming.is_asked_for():
            raise abort_refused(f"nanwatch could not be installed ({error})") from error
        unknown.say(error)


def _attaching_after(worker: Any, vllm_config: Any) -> Any:
    def load_model(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        attach(worker, vllm_config, loaded=True)
        return result

    return load_model


def _attach(worker: Any, vllm_config: Any) -> None:
    if arming.is_asked_for():
        arming.refuse_unverified(vllm_config)
    place = place_of(worker, vllm_config)
    runner = worker.model_runner
    if getattr(runner, "batch_sharder", None) is not None:
        place = place._replace(owns_requests=place.has_logits)
    if arming.is_asked_for() and not place.owns_requests:
        EveryRank(runner).install()
        return
    if not place.has_logits or not (place.owns_requests or _all_ranks()):
        return
    lacking = seams.missing(type(runner))
    if lacking:
        raise unknown.missing(lacking)
    probe = _probe(worker, vllm_config, place)
    _install(runner, probe, place)
    replace(worker, "shutdown", _closing(probe))
    probe.start()  # an engine that waits for its first request is watched too


def _all_ranks() -> bool:
    try:
        return Settings.from_environment().all_ranks
    except SettingsError:  # the counting rank's probe says it
        return False


def _probe(worker: Any, vllm_config: Any, place: Place) -> NanProbe:
    model = vllm_config.model_config
    return NanProbe(
        model_name=_first(model.served_model_name) or model.model,
        runtime=RUNTIME,
        engine=place.engine,
        life=place.life,
        device=worker.device,
        rank=place.rank,
        counting=place.owns_requests,
        raises_later=True,
        client_id=client_id,
        can_abort=True,
    )


def _install(runner: Any, probe: NanProbe, place: Place) -> None:
    guard = Guard("nanwatch in vLLM", probe)
    spares = WorkerSide(runner, probe, guard) if probe.aborts else None
    outlet = Outlet(
        probe, guard, output_is_asked_for=place.sends_output, report=spares.report if spares else None
    )
    kind = V2 if seams.is_v2(type(runner)) else V1
    kind(runner, outlet, guard).install()
    if spares is not None:
        spares.install()
    logger.info("nanwatch looks at this worker of vLLM: runner %s", kind.__name__)


def _closing(probe: NanProbe) -> Any:
    def shutdown(original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            probe.close()

    return shutdown


def _first(names: Any) -> str:
    """Return the name that vLLM's own metrics carry: the first of those that a model is served under."""
    return names if isinstance(names, str) else next(iter(names or ()), "")


def _speak_in_the_log_of_vllm() -> None:
    """Borrow vLLM's handler where nobody has given nanwatch one: the path of the journal is told by info."""
    if not logger.hasHandlers():
        logger.handlers[:] = logging.getLogger("vllm").handlers
        logger.setLevel(logging.INFO)
