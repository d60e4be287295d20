"""Watching continuous batching: one model by a handle, or every model of the process; and letting go."""

import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.generation.continuous_batching import continuous_api, model_runner

import nanwatch
from nanwatch.engines.huggingface.continuous import attach, seams
from nanwatch.engines.huggingface.probes import probe_of
from nanwatch.engines.huggingface.replaced_method import ReplacedMethod
from nanwatch.engines.seams import MissingSeamError
from tests.engines.huggingface.batches import (
    Forwards,
    Prompt,
    add,
    following,
    manager_of,
    quick_collections,
    run_to_end,
    settings,
    wishes,
)
from tests.engines.huggingface.tiny import LIKED, tiny_llama
from tests.engines.written import Written

ABC = {"a": Prompt([7, 8, 9, 10]), "b": Prompt([7, 8]), "c": Prompt([11, 12, 13])}


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with quick_collections():
        yield


@pytest.fixture
def model() -> Any:
    return tiny_llama()


@pytest.fixture
def mixin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that every model has its continuous batching from, as it was, again after the test."""
    for name in ("init_continuous_batching", "generate_batch"):
        monkeypatch.setattr(
            continuous_api.ContinuousMixin, name, getattr(continuous_api.ContinuousMixin, name)
        )
    return continuous_api.ContinuousMixin


def is_changed(*objects: Any) -> bool:
    return any(isinstance(value, ReplacedMethod) for each in objects for value in vars(each).values())


def run(manager: Any, model: Any, plan: Forwards) -> dict[str, Any]:
    add(manager, ABC)
    with following(model, plan):
        return run_to_end(manager, len(ABC))


def test_close_leaves_model_manager_and_engine_as_they_were(model: Any, written: Written) -> None:
    handle = nanwatch.watch_generate(model)
    manager = manager_of(model)
    manager.warmup()
    engine = manager.batch_processor
    parts = (
        *(model, manager, manager.output_router, engine),
        *(engine.scheduler, engine.model_runner, engine.inputs_and_outputs),
    )
    assert all(is_changed(part) for part in parts)
    handle.close()
    assert not any(is_changed(part) for part in parts)
    outputs = run(manager, model, Forwards({(1, 0): 1}))
    assert outputs["a"].generated_tokens == [0, LIKED, LIKED, LIKED]


def test_a_manager_that_stops_lets_go_of_its_cache_as_if_nobody_watched(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model):
        manager = manager_of(model)
        manager.warmup()
        cache = weakref.ref(manager.batch_processor.cache)
        run(manager, model, Forwards())  # stops at its end
        assert cache() is None


def batch(model: Any) -> dict[str, Any]:
    """Make two tokens for two prompts, in a manager that the model keeps."""
    outputs = model.generate_batch(
        [[7, 8], [9, 10]],
        generation_config=wishes(max_new_tokens=2),
        continuous_batching_config=settings(),
        persistent_manager=True,
    )
    assert isinstance(outputs, dict)
    return outputs


def test_a_manager_that_was_kept_is_watched_from_its_next_session_on(model: Any, written: Written) -> None:
    """What it had prepared has no place for counts, and is made anew."""
    batch(model)
    before = model._cached_continuous_batching_manager.batch_processor
    with nanwatch.watch_generate(model) as handle, following(model, Forwards({(2, 1): 3})):
        outputs = batch(model)
        totals, found = written.report(handle.probe)
    assert model._cached_continuous_batching_manager.batch_processor is not before
    assert set(found) == {name for name, output in outputs.items() if 0 in output.generated_tokens}
    assert (totals.requests, len(found)) == (2, 1)


def test_a_kept_manager_is_watched_through_all_its_sessions(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle:
        for session in (0, 1):
            with following(model, Forwards({(1, session): 1})):
                batch(model)
            assert written.totals(handle.probe).corrupted_requests == session + 1
        assert written.totals(handle.probe).requests == 4
        assert written.totals(handle.probe).dropped_steps == {}


def test_a_manager_that_runs_already_is_not_half_watched(
    model: Any, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manager_of(model)
    manager.start()
    try:
        model._cached_continuous_batching_manager = manager
        with nanwatch.watch_generate(model) as handle:
            assert manager_of(model) is manager
            assert written.totals(handle.probe).dropped_steps == {"error": 1}
    finally:
        manager.stop()
    assert "started before it was watched" in caplog.text


def test_attached_every_model_is_watched_under_a_probe_of_its_own(mixin: Any, written: Written) -> None:
    attach(continuous_api)
    once = mixin.init_continuous_batching
    attach(continuous_api)
    assert mixin.init_continuous_batching is once
    models = [tiny_llama(), tiny_llama()]
    for row, model in enumerate(models):
        run(manager_of(model), model, Forwards({(1, row): 1}))
        assert probe_of(model).flush()
    for model in models:
        probe_of(model).close()
    reports = written.report(probe_of(models[0]))
    assert sorted(reports.corrupted) == ["a", "b"]
    assert reports.totals.requests == 6


def test_a_model_that_the_program_watches_itself_is_counted_once(
    mixin: Any, model: Any, written: Written
) -> None:
    attach(continuous_api)
    with nanwatch.watch_generate(model) as handle:
        run(manager_of(model), model, Forwards({(1, 1): 1}))
        totals, found = written.report(handle.probe)
    assert (totals.requests, list(found)) == (3, ["b"])


@pytest.mark.parametrize(("owner", "name"), seams._METHODS)
def test_a_missing_seam_is_named_and_nothing_is_changed(owner: str, name: str, mixin: Any) -> None:
    names = {each: getattr(continuous_api, each) for each in {cls for cls, _ in seams._METHODS}}
    without = {key: value for key, value in vars(names[owner]).items() if key != name}
    module = SimpleNamespace(**{**names, owner: SimpleNamespace(**without)})
    with pytest.raises(MissingSeamError, match=rf"has no {owner}\.{name}"):
        seams.check(module)
    assert not hasattr(mixin.generate_batch, "attached_by_nanwatch")


def test_a_seam_with_other_parameters_is_missing(mixin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute_batch(_self: Any, graph: Any, model: Any, batch_data: Any) -> None: ...

    monkeypatch.setattr(model_runner.ModelRunner, "compute_batch", compute_batch)
    with pytest.raises(MissingSeamError, match=r"takes \('graph', 'model'\), not \('model', 'batch_data'\)"):
        attach(continuous_api)
    assert not hasattr(mixin.init_continuous_batching, "attached_by_nanwatch")


def test_where_a_seam_is_missing_generate_alone_is_watched(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seams, "_METHODS", {("ContinuousMixin", "of_another_version"): ()})
    with nanwatch.watch_generate(model):
        replaced = {name for name, value in vars(model).items() if isinstance(value, ReplacedMethod)}
    assert "generate" in replaced
    assert not replaced & {"generate_batch", "init_continuous_batching"}
    assert "does not look at continuous batching" in caplog.text
