"""What an adapter needs of a vLLM. It is looked at on the runner's class, before anything is touched.

A seam is a method with the parameters that are passed on or read by position, or a field of a
class that stands in the runner's own module. The signatures of twelve versions, 0.11.0 to 0.33.0,
were recorded (tests/engines/vllm/signatures.py); from 0.16.0 on all seams are there.
"""

import inspect
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple


class Seam(NamedTuple):
    """A method of the runner, and the names of its first parameters after self."""

    method: str
    parameters: tuple[str, ...]


class Fields(NamedTuple):
    """Fields of a class in the runner's module."""

    class_name: str
    names: tuple[str, ...]


V1_SEAMS = (
    Seam("execute_model", ("scheduler_output",)),
    Seam("sample_tokens", ("grammar_output",)),
)
V1_FIELDS = (Fields("ExecuteModelState", ("scheduler_output", "logits", "spec_decode_metadata")),)
V2_SEAMS = (
    Seam("execute_model", ("scheduler_output",)),
    Seam("sample_tokens", ("grammar_output",)),
    Seam("sample", ("hidden_states", "input_batch", "grammar_output")),
)
V2_FIELDS = (
    Fields(
        "InputBatch",
        (
            "req_ids",
            "num_reqs",
            "idx_mapping",
            "expanded_idx_mapping",
            "num_scheduled_tokens",
            "query_start_loc_np",
            "cu_num_logits_np",
        ),
    ),
)


def is_v2(runner_class: type[Any]) -> bool:
    """Say whether it is the second model runner: only that one has a public `sample`."""
    return callable(getattr(runner_class, "sample", None))


def missing(runner_class: type[Any]) -> list[str]:
    """Return the seams that this runner lacks, in words; empty for a vLLM that is known."""
    second = is_v2(runner_class)
    seams, places = (V2_SEAMS, V2_FIELDS) if second else (V1_SEAMS, V1_FIELDS)
    lacking = [lack for seam in seams for lack in _missing_method(runner_class, seam)]
    for place in places:
        lacking += _missing_fields(runner_class, place)
    return lacking


def _missing_method(runner_class: type[Any], seam: Seam) -> Iterable[str]:
    method = getattr(runner_class, seam.method, None)
    name = f"{runner_class.__module__}.{runner_class.__qualname__}.{seam.method}"
    if not callable(method):
        yield name
        return
    found = tuple(inspect.signature(method).parameters)[1:]
    if found[: len(seam.parameters)] != seam.parameters:
        yield f"{name}({', '.join(seam.parameters)}), found ({', '.join(found)})"


def _missing_fields(runner_class: type[Any], place: Fields) -> Iterable[str]:
    """Look where `sample_tokens` was written: a subclass for another device stands elsewhere."""
    method = getattr(runner_class, "sample_tokens", None)
    if method is None:  # named already
        return
    home = getattr(inspect.unwrap(method), "__globals__", {})
    known = _fields_of(home.get(place.class_name))
    yield from (f"{place.class_name}.{name}" for name in place.names if name not in known)


def _fields_of(found: Any) -> frozenset[str]:
    if is_dataclass(found):
        return frozenset(field.name for field in fields(found))
    return frozenset(getattr(found, "_fields", ()))
