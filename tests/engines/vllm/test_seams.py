"""Which vLLM is known: recorded signatures of twelve versions, and what is said of a strange one."""

import types
from collections import namedtuple
from typing import Any

import pytest

from nanwatch.engines.vllm import seams
from tests.engines.vllm import signatures
from tests.engines.vllm.signatures import VERSIONS, at

KNOWN = VERSIONS[VERSIONS.index("0.16.0") :]


def runner_class(version: str, methods: dict[str, signatures.Since], places: dict[str, Any]) -> type[Any]:
    """Write the class of a runner as that version has it, with no bodies, in a module of its own."""
    module = types.ModuleType("vllm.v1.worker.recorded")
    vars(module).update(places)
    forms = {name: at(version, since) for name, since in methods.items()}
    lines = [f"    def {name}(self, {', '.join(form)}): ..." for name, form in forms.items() if form]
    exec("\n".join(["class GPUModelRunner:", *lines]), vars(module))  # noqa: S102  written from our own table
    found: type[Any] = vars(module)["GPUModelRunner"]
    return found


def v1(version: str) -> type[Any]:
    state = at(version, signatures.V1_STATE)
    places: dict[str, Any] = {"ExecuteModelState": namedtuple("ExecuteModelState", state)} if state else {}  # noqa: PYI024
    return runner_class(version, signatures.V1_METHODS, places)


def v2(version: str) -> type[Any]:
    fields = at(version, signatures.V2_BATCH) or ()
    places = {"InputBatch": namedtuple("InputBatch", fields)}  # noqa: PYI024
    return runner_class(version, signatures.V2_METHODS, places)


@pytest.mark.parametrize("version", KNOWN)
def test_the_first_runner_is_known_from_0_16_to_0_33(version: str) -> None:
    assert (seams.is_v2(v1(version)), seams.missing(v1(version))) == (False, [])


@pytest.mark.parametrize("version", KNOWN)
def test_the_second_runner_is_known_from_0_16_to_0_33(version: str) -> None:
    assert (seams.is_v2(v2(version)), seams.missing(v2(version))) == (True, [])


def test_an_old_vllm_lacks_its_seam_by_name() -> None:
    assert seams.missing(v1("0.11.0")) == ["vllm.v1.worker.recorded.GPUModelRunner.sample_tokens"]


def test_a_renamed_parameter_is_a_missing_seam() -> None:
    renamed: dict[str, signatures.Since] = {
        **signatures.V2_METHODS,
        "sample": {"0.16.0": ("states", "input_batch", "grammar_output")},
    }
    fields = {"InputBatch": namedtuple("InputBatch", at("0.33.0", signatures.V2_BATCH) or ())}  # noqa: PYI024
    lacking = "GPUModelRunner.sample(hidden_states, input_batch, grammar_output)"
    assert seams.missing(runner_class("0.33.0", renamed, fields)) == [
        f"vllm.v1.worker.recorded.{lacking}, found (states, input_batch, grammar_output)"
    ]


def test_a_field_that_is_gone_is_a_missing_seam() -> None:
    places = {"ExecuteModelState": namedtuple("ExecuteModelState", ("scheduler_output", "logits"))}  # noqa: PYI024
    strange = runner_class("0.33.0", signatures.V1_METHODS, places)
    assert seams.missing(strange) == ["ExecuteModelState.spec_decode_metadata"]


def test_a_runner_of_another_device_may_inherit_its_seams() -> None:
    """VLLM's CPU runner is a subclass that stands in another module."""

    class CPUModelRunner(v1("0.32.0")):  # type: ignore[misc]
        pass

    assert seams.missing(CPUModelRunner) == []
