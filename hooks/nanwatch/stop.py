"""Whether to stop an engine: what its environment asks for, and the raise itself.

A variable that is not understood makes a probe inert, with one line in the log; but where fail-fast
was meant, running on blindly would be the one wrong answer, so there it refuses to start.
"""

import logging

from .failfast import NanLogitsError
from .observation import Observation
from .settings import OnNan, Settings, SettingsError

LANDING_SECONDS = 5.0
WRITE_SECONDS = 1.0

logger = logging.getLogger("nanwatch")


def settings_of_engine(*, can_abort: bool = False) -> Settings:
    """Read the environment, on the engine's side; `can_abort` where one request can be ended there.

    Raises:
        SettingsError: fail-fast was meant, and it or another variable is not understood; or what is
            asked for cannot be had on this engine.
    """
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        if error.keeps_from_starting():
            raise
        logger.error("nanwatch does not look at this engine: %s", error)  # noqa: TRY400  one line, no traceback
        return Settings(enabled=False)
    if settings.on_nan is OnNan.ABORT and not can_abort:
        raise abort_refused("this engine has no way to end one request")
    return settings


def abort_refused(why: str, instead: str = "observe or raise") -> SettingsError:
    """Return the one line with which an engine, or a mode of it that was not verified, refuses to abort.

    To observe in its place would be the silent wrong answer: somebody counts on not being sent garbage.
    """
    return SettingsError(
        "NANWATCH_ON_NAN", f"NANWATCH_ON_NAN='abort' cannot be had here: {why}; use {instead}"
    )


def raise_if_corrupted(observation: Observation) -> None:
    """Wait for the counts of a step; on a NaN for its line too, but raise in any case.

    A NaN in padding never raises; one in a row whose request nobody named does.

    Raises:
        NanLogitsError: names every corrupted request of the step.
    """
    observation.wait_for_device()
    try:
        found = observation.counts_by_request(LANDING_SECONDS)
    except TimeoutError:
        logger.exception("nanwatch could not look at a step under fail-fast, the engine runs on")
        return
    corrupted = {request_id: values for request_id, values in found.items() if values}
    nobodys = observation.unattributed_nan_rows()
    if not corrupted and not nobodys:
        return
    written = observation.written_within(WRITE_SECONDS)
    note = f" (and in {nobodys} rows whose requests nobody named)" if nobodys else ""
    note += "" if written else f" (not in the journal after {WRITE_SECONDS:g} s: see the log)"
    raise NanLogitsError(corrupted, note)
