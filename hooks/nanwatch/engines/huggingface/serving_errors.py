"""`transformers serve --continuous-batching`: a request that nanwatch ended is a 503 that names NaN.

Of its own the server answers a request that failed with a 500 and no text; the error of a dead engine is
the one whose text it sends, with status 503. What is raised here is a kind of that, for one request: the
engine lives, and /health says so. A stream has its status already, and gets the text in its last chunk
without our doing.
"""

from functools import wraps
from types import ModuleType
from typing import Any

from .continuous.containment import NOTE

_MARK = "attached_by_nanwatch"


def attach(module: ModuleType) -> None:
    """Let the server say why a request was ended; a version of it without these places says 500.

    Args:
        module: serving.MODULE, freshly imported.
    """
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
