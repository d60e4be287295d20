"""Where abort was not verified it refuses to start, in one line; and where it fails, nobody gets garbage."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import nanwatch
from nanwatch.engines.huggingface.continuous import containment, manager, refusals
from nanwatch.settings import SettingsError
from tests.engines.huggingface.batches import Prompt, add, manager_of, quick_collections, wishes
from tests.engines.huggingface.flaky import Fault, flaky
from tests.engines.huggingface.sessions import session, talkative_llama
from tests.engines.huggingface.tiny import prompts
from tests.tools import until

BEGINS = "NANWATCH_ON_NAN='abort' cannot be had here: "


@pytest.fixture(autouse=True)
def _aborting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANWATCH_ON_NAN", "abort")


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with quick_collections():
        yield talkative_llama()


def refusal(model: Any, **how: Any) -> str:
    """Return how a watched model refuses to make a manager."""
    with nanwatch.watch_generate(model), pytest.raises(SettingsError) as raised:
        manager_of(model, **how)
    said = str(raised.value)
    assert said.startswith(BEGINS)
    assert said.endswith("observe or raise")
    assert "\n" not in said
    return said.removeprefix(BEGINS)


def test_generate_is_refused_at_its_first_call(model: Any) -> None:
    with nanwatch.watch_generate(model), pytest.raises(SettingsError) as raised:
        model.generate(**prompts([5, 6]), max_new_tokens=1, do_sample=False)
    assert str(raised.value) == (
        f"{BEGINS}generate() answers all requests of a call together and cannot end one of them; "
        "use continuous batching, or observe or raise"
    )


def test_a_module_of_ones_own_is_refused() -> None:
    with pytest.raises(SettingsError, match="no way to end one request; use observe or raise"):
        nanwatch.watch(torch.nn.Linear(2, 2))


def test_moving_requests_to_the_hosts_memory(model: Any) -> None:
    assert refusal(model, cpu_offload_space=0.001) == (
        "moving requests to the host's memory was not verified; use cpu_offload_space=0, or observe or raise"
    )


def test_compiled(model: Any) -> None:
    compiled = transformers.CompileConfig()
    assert refusal(model, varlen_compile_config=compiled).startswith("compiled continuous batching was not")


def test_another_version(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "VERSIONS", ("5.2",))  # of which 5.24 is none
    assert refusal(model) == (
        f"Transformers {transformers.__version__} was not verified; use Transformers 5.2, or observe or raise"
    )


def test_sliding_windows() -> None:
    config = MistralConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    sliding: Any = MistralForCausalLM(config)
    assert "sliding windows, were not verified" in refusal(sliding)


def test_layers_of_two_kinds() -> None:
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    config.layer_types = ["sliding_attention", "full_attention"]
    assert "sliding windows, were not verified" in refusal(LlamaForCausalLM(config))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"device": "cuda"}, "continuous batching on cuda was not verified; use observe or raise"),
        ({"attention": "flash_attention_2"}, "attention by flash_attention_2 was not verified; use sdpa "),
        ({"tp_size": 2}, "tensor parallelism was not verified; use observe or raise"),
        ({"dtype": torch.float8_e4m3fn}, "a KV cache of torch.float8_e4m3fn was not verified; use obs"),
        ({"running": True}, "continuous batching was started before it was watched; use watch_generate "),
    ],
)
def test_what_this_machine_does_not_have(model: Any, changed: dict[str, Any], said: str) -> None:
    """Stand-ins for a model and a manager that take other hardware."""
    real = manager_of(model)
    config = SimpleNamespace(
        _attn_implementation=changed.get("attention", "sdpa"), get_text_config=model.config.get_text_config
    )
    of_other = SimpleNamespace(
        config=config,
        device=torch.device(changed.get("device", "cpu")),
        dtype=changed.get("dtype", torch.float32),
    )
    other = SimpleNamespace(
        continuous_batching_config=real.continuous_batching_config,
        is_running=lambda: changed.get("running", False),
        distributed_helper=SimpleNamespace(tp_size=changed.get("tp_size", 1)),
    )
    with pytest.raises(SettingsError) as raised:
        refusals.refuse_unless_verified(of_other, other)
    assert str(raised.value).startswith(BEGINS + said)


def test_a_processor_that_cannot_be_watched_answers_nobody(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's thread makes it: the refusal is the error of every request."""

    def broken(*_: object) -> None:
        raise RuntimeError("no such buffer")

    monkeypatch.setattr(manager, "WatchedProcessor", broken)
    with (
        nanwatch.watch_generate(model),
        session(model, prepare=lambda m: add(m, {"a": Prompt([5, 6])})) as running,
    ):
        outputs = running.results(1)
    assert (
        outputs["a"].error
        == f"{BEGINS}continuous batching could not be watched, see the log; use observe or raise"
    )


def test_where_it_fails_the_engine_stops_and_nobody_gets_garbage(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_allocator: Any) -> None:
        raise RuntimeError("no such cache")

    monkeypatch.setattr(containment, "zero_bad_values", broken)
    names = ("a", "b", "c")
    with (
        nanwatch.watch_generate(model),
        session(model, prepare=lambda m: add(m, {n: Prompt([5, 6]) for n in names})) as running,
        flaky(model, running.manager, [Fault("b", 2)]),
    ):
        outputs = running.results(3)
        until(lambda: not running.manager.is_running(), "the engine's thread ends")
    assert set(outputs) == {"a", "b", "c"}
    assert all("could not be contained: the engine stops" in output.error for output in outputs.values())
    assert all(0 not in output.generated_tokens for output in outputs.values())


@pytest.mark.parametrize("is_async", [False, True])
def test_drawn_tokens_too(model: Any, is_async: bool) -> None:  # noqa: FBT001
    """Drawing from NaN raises for the whole batch: the engine gets 0 for it, and throws the token away."""
    names = ("a", "b", "c")
    with (
        nanwatch.watch_generate(model),
        session(
            model,
            is_async=is_async,
            generation=wishes(do_sample=True),
            prepare=lambda m: add(m, {n: Prompt([5, 6], 8) for n in names}),
        ) as running,
        flaky(model, running.manager, [Fault("b", 2)]),
    ):
        outputs = running.results(3)
        assert running.manager.is_running()
    assert {name for name, output in outputs.items() if output.error is not None} == {"b"}
    assert "NaNs detected in logits: {'b': " in outputs["b"].error
    assert all(len(outputs[name].generated_tokens) == 8 for name in ("a", "c"))


@pytest.mark.parametrize("is_async", [False, True])
def test_log_probabilities_stay_with_their_tokens(model: Any, is_async: bool) -> None:  # noqa: FBT001
    names = ("a", "b", "c")

    def run(faults: list[Fault]) -> dict[str, Any]:
        with (
            nanwatch.watch_generate(model),
            session(
                model,
                is_async=is_async,
                return_logprobs=True,
                prepare=lambda m: add(m, {n: Prompt([5, 6, i], 8) for i, n in enumerate(names, start=10)}),
            ) as running,
            flaky(model, running.manager, faults),
        ):
            return running.results(3)

    well, hit = run([]), run([Fault("b", 3)])
    assert "NaNs detected" in hit["b"].error
    for name in ("a", "c"):
        assert hit[name].generated_tokens == well[name].generated_tokens
        assert hit[name].logprobs == pytest.approx(well[name].logprobs, abs=1e-3)
