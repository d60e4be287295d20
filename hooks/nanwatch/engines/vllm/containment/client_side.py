"""In the API server: a request that was ended for its NaN fails with a text that says so, to be sent again.

vLLM turns the finish reason "error" into HTTP 500, "Internal server error", or into an error chunk of a
stream. Here the finish reason of such a request is a string that equals "error" and knows more, so that
the one place where vLLM raises for it can raise HTTP 503 with the text. Offline, where no server is
loaded, the text is in the `stop_reason` of the output.
"""

import sys
from collections.abc import Iterable
from functools import wraps
from typing import Any, Self

from nanwatch.engines.vllm.replaced import replace

from .reasons import is_ours, told_to_client

_MARK = "_nanwatch"
_SERVING = "vllm.entrypoints.generate.base.serving"


class NamedError(str):  # noqa: SLOT000  it carries an attribute
    """The finish reason "error" of one request, and why it was ended."""

    reason: str

    def __new__(cls, text: str, reason: str) -> Self:
        """Return `text`, which knows the reason."""
        named = super().__new__(cls, text)
        named.reason = reason
        return named


def install() -> None:
    """Put a look at each step's outputs before the output processor's own work, in this process."""
    from vllm.v1.engine.output_processor import OutputProcessor

    original = OutputProcessor.process_outputs
    if getattr(original, _MARK, False):
        return

    @wraps(original)
    def process_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        ended = [output for output in engine_core_outputs if is_ours(output.stop_reason)]
        if ended and _SERVING in sys.modules:
            _say_why(sys.modules[_SERVING])
            _name(self.request_states, ended)
        return original(self, engine_core_outputs, *args, **kwargs)

    setattr(process_outputs, _MARK, True)
    OutputProcessor.process_outputs = process_outputs


def _name(states: Any, ended: Iterable[Any]) -> None:
    """Have the next output of these requests, their last one, carry a named error."""
    for output in ended:
        state = states.get(output.request_id)
        if state is not None:
            replace(state, "_new_completion_output", _naming(output.stop_reason))


def _naming(reason: str) -> Any:
    def new_completion_output(original: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        output.finish_reason = NamedError(output.finish_reason, reason)
        return output

    return new_completion_output


def _say_why(serving: Any) -> None:
    """Put the text where vLLM raises for an error, once: all routes of generation share this method."""
    base = serving.GenerateBaseServing
    original = base._raise_if_error  # noqa: SLF001  it has no public name
    if getattr(original, _MARK, False):
        return

    @wraps(original)
    def _raise_if_error(self: Any, finish_reason: str | None, request_id: str) -> None:
        if isinstance(finish_reason, NamedError):
            raise _error(told_to_client(finish_reason.reason))
        original(self, finish_reason, request_id)

    setattr(_raise_if_error, _MARK, True)
    base._raise_if_error = _raise_if_error  # noqa: SLF001


def _error(text: str) -> Exception:
    from vllm.exceptions import RetryableRequestError

    error: Exception = RetryableRequestError(text)
    return error
