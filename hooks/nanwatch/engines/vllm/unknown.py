"""What is said where nanwatch does not look at a vLLM: one line, and a source with hook_active 0."""

import logging
from collections.abc import Sequence

from nanwatch.attach import cannot_look
from nanwatch.engines.seams import MissingSeamError

ENGINE = "vllm"

logger = logging.getLogger("nanwatch")


def missing(seams: Sequence[str]) -> MissingSeamError:
    """Name what this vLLM lacks."""
    return MissingSeamError(f"it has no {', no '.join(seams)}")


def say(error: Exception) -> None:
    """Say it with both versions; nothing gets out of here."""
    try:
        cannot_look(ENGINE, error)
    except Exception:  # the journal's folder may be of any kind
        logger.exception("nanwatch could not show that it does not look at vllm")
