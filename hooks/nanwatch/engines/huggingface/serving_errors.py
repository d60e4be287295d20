"""`transformers serve` under NANWATCH_ON_NAN=abort: a request that nanwatch ended is a 503 that names NaN.

Of its own the server answers a request that failed with a 500 and no text; the error of a dead engine is
the one whose text it sends, with status 503. What is raised here is a kind of that, for one request: the
engine lives, and /health says so. A stream has its status already, and gets the text in its last chunk
without our doing.

Without --continuous-batching the server is made of generate(), which cannot end one request: it refuses to
start.
"""

from functools import wraps
from types import ModuleType
from typing import Any

from nanwatch.settings import OnNan
from nanwatch.stop import settings_of_engine

from .continuous import refused_for_generate
from .continuous.containment import NOTE

_MARK = "attached_by_nanwatch"


def attach(module: ModuleType) -> None:
    """Let the server say why a request was ended; a version of it without these places says 500.

    Args:
        module: serving.MODULE, freshly imported.
    """
    _refuse_without_continuous_batching(getattr(module, "GenerationState", None))
    manager: Any = getattr(module, "CBGenerateManager", None)
    original: Any = getattr(manager, "generate_non_streaming", None)
    served_with_503: Any = getattr(module, "CBWorkerDeadError", None)
    if original is None or served_with_503 is None or hasattr(original, _MARK):
        return

    ended: Any = type("RequestEndedError", (served_with_503,), {})  # the base is known at import only

    @wraps(original)
    async def replaced(*args: Any, **kwargs: Any) -> Any:
        try:
            return await original(*args, **kwargs)
        except RuntimeError as error:
            if NOTE not in str(error) or isinstance(error, served_with_503):
                raise
            raise ended(str(error)) from error

    setattr(replaced, _MARK, True)
    manager.generate_non_streaming = replaced


def _refuse_without_continuous_batching(state: Any) -> None:
    """Look at the server's flags as it starts; one that keeps them elsewhere is refused by its requests."""
    original: Any = getattr(state, "__init__", None)
    if state is None or hasattr(original, _MARK):
        return

    @wraps(original)
    def replaced(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        wanted = settings_of_engine(can_abort=True).on_nan is OnNan.ABORT
        if wanted and not getattr(self, "_continuous_batching", True):
            raise refused_for_generate()

    setattr(replaced, _MARK, True)
    state.__init__ = replaced
