"""vLLM's internal request ids, and what the client calls the request. Pure.

    X-Request-Id  my-1   ->  internal  cmpl-my-1-0-5c0b6d4a    (prompt 0 of a completion)
                             internal  chatcmpl-my-1-5c0b6d4a
    with n=2                 internal  0_chatcmpl-my-1-5c0b6d4a and 1_chatcmpl-my-1-5c0b6d4a
    LLM.generate             internal  7-5c0b6d4a, shown as 7: RequestOutput.request_id
The internal id is unique and stays the key; the client's is what is shown. An id that is not
understood is shown as it is.
"""

import os
import re
from collections.abc import Mapping

_RANDOM = re.compile(r"-[0-9a-f]{8}")
_CHILD = re.compile(r"\d+_(?=\d+$)")
_INDEX = re.compile(r"-\d+")

# What a route puts before the client's id, and whether it adds the index of the prompt after it.
_ROUTES = {
    "chatcmpl-": False,
    "generate-tokens-": False,
    "cmpl-": True,
    "embd-": True,
    "pooling-": True,
    "classify-": True,
    "score-": True,
}
_CHILD_OF_ROUTE = re.compile(rf"\d+_(?={'|'.join(_ROUTES)})")
_NOT_RANDOM = "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"


def client_id(internal_id: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return what the client calls a request: "cmpl-my-1-0-5c0b6d4a" -> "my-1"."""
    name = internal_id
    if environment.get(_NOT_RANDOM, "0") in {"", "0"}:
        name = _without_end(name, _RANDOM)
    for child in (_CHILD_OF_ROUTE, _CHILD):
        found = child.match(name)
        name = name[found.end() :] if found else name
    for route, has_index in _ROUTES.items():
        if name.startswith(route):
            name = name.removeprefix(route)
            return (_without_end(name, _INDEX) if has_index else name) or internal_id
    return name or internal_id


def _without_end(name: str, end: re.Pattern[str]) -> str:
    """Cut off the last part, if it is of this form: the one after the last dash."""
    at = name.rfind("-")
    return name[:at] if at > 0 and end.fullmatch(name, at) else name
