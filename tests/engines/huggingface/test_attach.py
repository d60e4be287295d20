"""attach(): every model's generate() is watched from its first call on, without a line in the program.

Classes are changed for good, so these are of each test's own: a mixin that stands where GenerationMixin
does in the module that is attached to, and real models that have it.
"""

import copy
import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationMixin, LlamaConfig, LlamaForCausalLM

import nanwatch
from nanwatch.engines.huggingface import automatic
from nanwatch.engines.huggingface.attach import attach
from nanwatch.engines.huggingface.replaced_method import ReplacedMethod
from nanwatch.engines.huggingface.shared_probes import SharedProbes
from nanwatch.engines.seams import MissingSeamError
from nanwatch.journal.reader import JournalReader
from nanwatch.settings import SettingsError
from tests.engines.huggingface.tiny import BOS, EOS, PAD, POISON, V, prompts, tiny_llama
from tests.seen import Seen, read

AB = ["a", "b"]
B_IS_POISONED = prompts([5, 6], [5, POISON, 7])


@pytest.fixture
def engine() -> ModuleType:
    """A module that looks like transformers.generation.utils, with a mixin of its own."""

    class Own(GenerationMixin):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    module = ModuleType("transformers.generation.utils")
    vars(module)["GenerationMixin"] = Own
    return module


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedProbes]:
    """The process's probes, for this test alone, all of them closed in the end."""
    shared = SharedProbes()
    monkeypatch.setattr(automatic, "PROBES", shared)
    yield shared
    for each in list(shared._shared.values()):
        each.probe.close()


def model_of(engine: ModuleType, **members: Any) -> Any:
    """Return a tiny Llama of a class that has the engine's mixin, and these members of its own."""
    cls: Any = type("Tiny", (LlamaForCausalLM, engine.GenerationMixin), members)
    torch.manual_seed(0)
    sizes: Any = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    tokens: Any = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    model = cls(LlamaConfig(vocab_size=V, max_position_embeddings=64, **sizes, **tokens)).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = float("nan")
    return model


def generate(model: Any, *ids: str, **kwargs: Any) -> Any:
    with nanwatch.request_ids(ids or AB):
        return model.generate(**{**B_IS_POISONED, "max_new_tokens": 2, "do_sample": False, **kwargs})


def seen(probes: SharedProbes, journal: Path) -> Seen:
    assert all(shared.probe.flush() for shared in list(probes._shared.values()))
    return read(journal)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_each_call_is_counted_once_from_the_first_on(
    engine: ModuleType, probes: SharedProbes, journal: Path
) -> None:
    attach(engine)
    model = model_of(engine)
    generate(model)
    generate(model, "c", "d")
    found = seen(probes, journal)
    assert (found.ids, found.totals.requests, found.totals.steps) == (["b", "d"], 4, 4)


def test_attached_twice_it_counts_once(engine: ModuleType, probes: SharedProbes, journal: Path) -> None:
    attach(engine)
    attach(engine)
    generate(model_of(engine))
    assert seen(probes, journal).totals.requests == 2


def test_what_generate_returns_is_what_it_returned(engine: ModuleType, probes: SharedProbes) -> None:
    model = model_of(engine)
    before = generate(model)
    attach(engine)
    assert torch.equal(generate(model), before)


def test_a_model_that_was_made_before_is_watched_too(
    engine: ModuleType, probes: SharedProbes, journal: Path
) -> None:
    model = model_of(engine)
    attach(engine)
    generate(model)
    assert seen(probes, journal).ids == ["b"]


def _twice(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Generate as Whisper does for long audio: several loops, one call."""
    first = super(type(self), self).generate(*args, **kwargs)
    return first, super(type(self), self).generate(*args, **kwargs)


@pytest.mark.parametrize("made_first", [True, False])
def test_a_class_with_a_generate_of_its_own_is_one_call_from_the_first_on(
    engine: ModuleType, probes: SharedProbes, journal: Path, *, made_first: bool
) -> None:
    model = model_of(engine, generate=_twice) if made_first else None
    attach(engine)
    model = model or model_of(engine, generate=_twice)
    generate(model)
    found = seen(probes, journal)
    assert (found.ids, found.totals.requests, found.totals.steps) == (["b"], 2, 4)
    generate(model, "c", "d")
    assert (seen(probes, journal).totals.requests, seen(probes, journal).totals.steps) == (4, 8)


def passing_on(function: Any) -> Any:
    def passes(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return passes


def test_a_wrapper_that_others_put_over_the_class_or_the_model_hides_nothing(
    engine: ModuleType, probes: SharedProbes, journal: Path
) -> None:
    attach(engine)
    ours = engine.GenerationMixin.generate
    engine.GenerationMixin.generate = passing_on(ours)
    model = model_of(engine)
    generate(model)
    replaced = model.generate
    model.generate = passing_on(replaced)
    generate(model, "c", "d")
    found = seen(probes, journal)
    assert (found.ids, found.totals.requests, found.totals.steps) == (["b", "d"], 4, 4)


def test_a_method_that_was_looked_up_before_the_first_call_is_counted_each_time(
    engine: ModuleType, probes: SharedProbes, journal: Path
) -> None:
    attach(engine)
    model = model_of(engine)
    looked_up = SimpleNamespace(generate=model.generate)
    generate(looked_up)
    generate(looked_up, "c", "d")
    generate(model, "e", "f")
    model.generate = passing_on(model.generate)
    generate(looked_up, "g", "h")
    found = seen(probes, journal)
    assert (found.ids, found.totals.requests, found.totals.steps) == (["b", "d", "f", "h"], 8, 8)


def test_first_calls_in_many_threads_at_once_are_all_counted(
    engine: ModuleType, probes: SharedProbes, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attach(engine)
    model = model_of(engine)
    start = threading.Barrier(8)

    def call(number: int) -> None:
        start.wait()
        generate(model, f"a{number}", f"b{number}")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = seen(probes, journal)
    assert sorted(found.ids) == [f"b{number}" for number in range(8)]
    assert (found.totals.requests, found.totals.steps, found.sources) == (16, 16, 1)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_assistant_is_no_request(engine: ModuleType, probes: SharedProbes, journal: Path) -> None:
    attach(engine)
    target, assistant = model_of(engine), model_of(engine)
    with nanwatch.request_ids(["only"]):
        target.generate(**prompts([5, 6]), max_new_tokens=4, do_sample=False, assistant_model=assistant)
    found = seen(probes, journal)
    assert (found.totals.requests, found.sources) == (1, 1)
    assert not isinstance(vars(assistant).get("generate"), ReplacedMethod)


def test_models_of_one_name_share_a_source_and_take_it_with_them(
    engine: ModuleType, probes: SharedProbes, journal: Path
) -> None:
    attach(engine)
    one, two = model_of(engine), model_of(engine)
    generate(one)
    generate(two, "c", "d")
    assert seen(probes, journal).sources == 1
    del one
    gc.collect()
    assert generate(two, "e", "f") is not None
    assert active(journal) == [True]
    del two
    gc.collect()
    wait_until(lambda: not probes._shared)
    assert read(journal).ids == ["b", "d", "f"]
    wait_until(lambda: active(journal) == [False])


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def active(journal: Path) -> list[bool]:
    reader = JournalReader(journal)
    reader.poll()
    reader.close()
    return [source.active for source in reader.sources]


def test_models_of_two_names_are_two_sources(engine: ModuleType, probes: SharedProbes, journal: Path) -> None:
    attach(engine)
    one, two = model_of(engine), model_of(engine)
    one.name_or_path, two.name_or_path = "llama-one", "llama-two"
    generate(one)
    generate(two, "c", "d")
    assert {key.name for key in probes._shared} == {"llama-one", "llama-two"}
    assert seen(probes, journal).sources == 2


def test_the_programs_own_watch_goes_before_and_afterwards_ours_is_back(
    engine: ModuleType, probes: SharedProbes, journal: Path
) -> None:
    attach(engine)
    model = model_of(engine)
    generate(model)
    with nanwatch.watch_generate(model, model_name="its own") as handle:
        generate(model, "c", "d")
        assert handle.probe.flush()
        wait_until(lambda: not probes._shared)
    generate(model, "e", "f")
    found = seen(probes, journal)
    assert (sorted(found.ids), found.totals.requests) == (["b", "d", "f"], 6)
    assert found.sources == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])  # noqa: S301
def test_a_copy_of_a_watched_model_is_a_model_of_its_own(
    probes: SharedProbes, journal: Path, copied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("transformers.generation.utils")
    vars(module)["GenerationMixin"] = LlamaForCausalLM  # its generate is GenerationMixin's: put back below
    monkeypatch.setattr(LlamaForCausalLM, "generate", GenerationMixin.generate)
    monkeypatch.setattr(LlamaForCausalLM, "__init_subclass__", LlamaForCausalLM.__init_subclass__)
    attach(module)
    original = tiny_llama()
    generate(original)
    model = copied(original)
    generate(model, "c", "d")
    found = seen(probes, journal)
    assert (found.ids, found.totals.requests) == (["b", "d"], 4)


@pytest.mark.parametrize("missing", ["GenerationMixin", "generate", "_get_stopping_criteria"])
def test_a_seam_that_is_not_there_is_named_and_nothing_is_changed(missing: str) -> None:
    module = ModuleType("transformers.generation.utils")
    methods = {"generate": len, "_get_stopping_criteria": len}
    if missing != "GenerationMixin":
        del methods[missing]
        vars(module)["GenerationMixin"] = type("GenerationMixin", (), dict(methods))
    with pytest.raises(
        MissingSeamError, match=rf"^there is no transformers\.generation\.utils\.\S*{missing}"
    ):
        attach(module)
    mixin = vars(module).get("GenerationMixin")
    assert mixin is None or {name: vars(mixin)[name] for name in methods} == methods


def test_a_model_that_cannot_be_watched_generates_all_the_same(
    engine: ModuleType,
    probes: SharedProbes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fault: a probe that cannot be made."""

    def fail(*_: Any) -> Any:
        raise OSError("out of everything")

    probes.make = fail
    attach(engine)
    model = model_of(engine)
    assert generate(model).shape[0] == 2
    assert generate(model).shape[0] == 2
    (line,) = [record for record in caplog.records if record.name == "nanwatch"]
    assert "does not look at transformers 5." in line.getMessage()
    assert "out of everything" in line.getMessage()


def test_where_fail_fast_is_meant_and_not_understood_nothing_is_generated(
    engine: ModuleType, probes: SharedProbes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "ture")
    attach(engine)
    with pytest.raises(SettingsError, match="NANWATCH_FAIL_FAST='ture'"):
        generate(model_of(engine))
