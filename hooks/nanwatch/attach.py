"""nanwatch in a program that knows nothing of it: each engine is hooked into when it is imported.

    nanwatch run -- transformers serve MODEL      from outside, no code: run/startup does the call
    nanwatch.watch_engines()                      in a program, once, before or after its engine's import
SEAMS says what happens: after the engine's module on the left was imported, the function on the
right gets it, and puts its hooks there, for the whole process. Forked children inherit them; other
children attach by themselves where `nanwatch run` began it. No torch is imported here, and no module
of ours that needs it, before the engine did so.

Nothing that goes wrong here breaks an import: where a seam is not there, or the hook fails, it is one
line in the log and a source with nanwatch_hook_active 0 (blind.py), and the program runs on.
"""

import logging
import os
import threading
from functools import partial
from importlib import import_module
from types import ModuleType

from .import_hook import when_imported

SEAMS = {
    "transformers.generation.utils": "nanwatch.engines.huggingface.attach:attach",
    "transformers.generation.continuous_batching.continuous_api": (
        "nanwatch.engines.huggingface.continuous:attach"
    ),
    "transformers.cli.serving.utils": "nanwatch.engines.huggingface.serving:attach",
    "transformers.cli.serving.transcription": "nanwatch.engines.huggingface.serving:attach_transcription",
}

logger = logging.getLogger("nanwatch")

_once = threading.Lock()
_said: set[str] = set()  # what the log has been told
_watching = False


def watch_engines() -> None:
    """Watch every engine of SEAMS that this process has imported, or will; a second call does nothing.

    With NANWATCH_ENABLED=0 nothing is installed.

    Raises:
        SettingsError: fail-fast or an abort was asked for in words that are not understood. The engines are
            watched all the same, and refuse to run.
    """
    global _watching  # noqa: PLW0603  a process has one sys.meta_path
    with _once:
        begins = not _watching and _is_enabled()
        _watching |= begins
    if begins:
        when_imported({engine: partial(_take_hold, seam) for engine, seam in SEAMS.items()})
    _refuse_to_start_blindly()


def cannot_look(engine: str, error: Exception) -> None:
    """Say that an engine is not looked at: one line in the log for each reason, one source for the engine.

    Args:
        engine: the name of its package, "transformers".
        error: a MissingSeamError, or whatever else stopped the hook.
    """
    from .blind import show
    from .engines.seams import MissingSeamError
    from .identity import versions

    reason = f"nanwatch {versions()['nanwatch']} does not look at {engine} {_version_of(engine)}: {error}"
    with _once:
        if reason in _said:
            return
        _said.add(reason)
    if isinstance(error, MissingSeamError):
        logger.warning("%s; the program runs on", reason)
    else:
        logger.error("%s; the program runs on", reason, exc_info=error)
    show(engine, _version_of(engine), reason)


def _take_hold(seam: str, module: ModuleType) -> None:
    """Give the engine's module to the seam's function; nothing gets out of here."""
    home, _, function = seam.partition(":")
    try:
        if _is_enabled():
            getattr(import_module(home), function)(module)
    except Exception as error:  # noqa: BLE001  whatever it is, the import goes on
        if isinstance(error, ModuleNotFoundError) and home.startswith(str(error.name)):
            return  # this nanwatch has nothing for the engine's module
        _say_safely(module.__name__.partition(".")[0], error)


def _say_safely(engine: str, error: Exception) -> None:
    try:
        cannot_look(engine, error)
    except Exception:  # the journal's folder may be of any kind, the package's version too
        logger.exception("nanwatch could not show that it does not look at %s", engine)


def _is_enabled() -> bool:
    """Whether NANWATCH_ENABLED is not 0. A variable that is not understood is the first probe's to say."""
    from .settings import Settings, SettingsError

    try:
        return Settings.from_environment().enabled is not False
    except SettingsError:
        return True


def _refuse_to_start_blindly() -> None:
    """Say at the start, and not at the first request, what would keep every request from being answered."""
    from .settings import Settings, SettingsError

    try:
        Settings.from_environment()
    except SettingsError as error:
        if error.keeps_from_starting():
            raise


def _version_of(engine: str) -> str:
    """Return what the package says of itself, "of unknown version" where it says nothing."""
    return str(getattr(import_module(engine), "__version__", "of unknown version"))


def _start_anew_in_child() -> None:
    global _once  # noqa: PLW0603  a fork may come while another thread holds it
    _once = threading.Lock()


os.register_at_fork(after_in_child=_start_anew_in_child)
