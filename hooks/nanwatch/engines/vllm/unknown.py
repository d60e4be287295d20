"""The one warning about a vLLM that nanwatch does not know; its engine is left as it is."""

import logging
import sys
from collections.abc import Iterable

from nanwatch import __version__

logger = logging.getLogger("nanwatch")


def warn(missing: Iterable[str]) -> None:
    """Name both versions and what is missing."""
    logger.warning(
        "nanwatch %s does not know this vLLM %s: nothing is watched, the engine runs on; missing: %s",
        __version__,
        vllm_version(),
        ", ".join(missing),
    )


def vllm_version() -> str:
    """Return the version of the vLLM that is running."""
    return str(getattr(sys.modules.get("vllm"), "__version__", "unknown"))
