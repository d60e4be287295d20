"""Continuous batching when something goes wrong: sampling from NaN, fail-fast, a fault of nanwatch's own."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import nanwatch
from nanwatch import NanLogitsError
from nanwatch.engines.huggingface.continuous import processor, room
from nanwatch.engines.huggingface.continuous.counting_model import ROOM, CountingModel
from nanwatch.engines.huggingface.replaced_method import ReplacedMethod
from tests.engines.huggingface.batches import (
    Forwards,
    Prompt,
    add,
    following,
    manager_of,
    quick_collections,
    run_to_end,
    settings,
    two_buffers,
    wishes,
)
from tests.engines.huggingface.tiny import LIKED, V, tiny_llama
from tests.engines.written import Written
from tests.seen import read

ABC = {"a": Prompt([7, 8, 9, 10]), "b": Prompt([7, 8]), "c": Prompt([11, 12, 13])}
MODES = pytest.mark.parametrize("is_async", [False, True], ids=["synchronous", "asynchronous"])


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with quick_collections():
        yield tiny_llama()


def run(model: Any, plan: Forwards, *, is_async: bool, sample: bool = False, **how: Any) -> dict[str, Any]:
    """Run a, b and c to their ends; says what the engine delivered last for each."""
    prompts = {name: Prompt(prompt.tokens, streaming=True) for name, prompt in ABC.items()}
    with two_buffers() if is_async else nullcontext(), following(model, plan):
        manager = manager_of(model, generation=wishes(do_sample=sample), use_async_batching=is_async, **how)
        add(manager, prompts)
        outputs = run_to_end(manager, len(prompts))
        if any(output.error for output in outputs.values()):
            assert manager.add_request([7, 8], request_id="late") is None
    return outputs


@MODES
@pytest.mark.parametrize("forward", [1, 3])
def test_sampling_from_nan_ends_the_engine_and_the_request_that_did_it_is_written(
    forward: int, *, is_async: bool, model: Any, written: Written
) -> None:
    """The step that raises is never read by the engine: its counts are looked at as the engine gives up."""
    with nanwatch.watch_generate(model) as handle:
        outputs = run(model, Forwards({(forward, 1): 5}), is_async=is_async, sample=True)
        totals, found = written.report(handle.probe)
    assert {name: (request.rows, request.values) for name, request in found.items()} == {"b": (1, 5)}
    assert found["b"].first_step == forward
    assert found["b"].finished
    assert {output.status.name for output in outputs.values()} == {"FAILED"}
    assert (totals.requests, totals.rows, totals.steps) == (3, 3 * forward, forward)


@MODES
def test_a_forward_that_raises_made_no_logits(*, is_async: bool, model: Any, written: Written) -> None:
    def fail() -> None:
        raise RuntimeError("made up")

    with nanwatch.watch_generate(model) as handle:
        outputs = run(model, Forwards({(1, 2): 1}, call={2: fail}), is_async=is_async)
        totals, found = written.report(handle.probe)
    assert {output.error for output in outputs.values()} == {"made up"}
    assert (totals.steps, totals.rows, list(found)) == (1, 3, ["c"])


@MODES
def test_fail_fast_fails_every_request_and_nobody_waits(
    *, is_async: bool, model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second row of b is NaN: b was written, its token reaches nobody, and all three streams end."""
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    begun = time.monotonic()
    with nanwatch.watch_generate(model) as handle:
        outputs = run(model, Forwards({(2, 1): 5}), is_async=is_async)
        totals, found = written.report(handle.probe)
    assert time.monotonic() - begun < 30
    assert {name: (request.rows, request.finished) for name, request in found.items()} == {"b": (1, True)}
    assert totals.fail_fast_trips == 1
    assert {name: output.generated_tokens for name, output in outputs.items()} == {
        name: [LIKED] for name in "abc"
    }
    assert {output.status.name for output in outputs.values()} == {"FAILED"}
    other = "the engine was stopped: 5 NaNs in the logits of another request"
    assert {name: output.error for name, output in outputs.items()} == {
        "a": other,
        "b": "NaNs detected in logits: {'b': 5}",
        "c": other,
    }


@MODES
def test_a_step_in_flight_that_holds_nan_too_changes_nothing_of_what_clients_are_told(
    *, is_async: bool, model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at as the engine gives up, which the step before made it do."""
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    with nanwatch.watch_generate(model) as handle:
        outputs = run(model, Forwards({(2, 1): 5, (3, 1): 7}), is_async=is_async)
        totals, _ = written.report(handle.probe)
    assert totals.fail_fast_trips == 1 + is_async  # asynchronous, the third step was in flight
    other = "the engine was stopped: 5 NaNs in the logits of another request"
    assert [output.error for output in outputs.values()] == [
        other,
        "NaNs detected in logits: {'b': 5}",
        other,
    ]


def test_generate_batch_raises_what_stopped_it_first(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step in flight holds another NaN, and is looked at last."""
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    plan = Forwards({(2, 0): 5, (3, 0): 7})
    with nanwatch.watch_generate(model), two_buffers(), following(model, plan):
        with pytest.raises(NanLogitsError) as caught:
            model.generate_batch(
                [[7, 8], [9, 10]],
                generation_config=wishes(max_new_tokens=4),
                continuous_batching_config=settings(use_async_batching=True),
            )
        assert read(written.folder).ids == list(caught.value.requests)
    assert list(caught.value.requests.values()) == [5]


def test_under_fail_fast_generate_batch_raises_what_stopped_it(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    with nanwatch.watch_generate(model), following(model, Forwards({(2, 0): 5})):
        with pytest.raises(NanLogitsError) as caught:
            model.generate_batch(
                [[7, 8], [9, 10], [11, 12]],
                generation_config=wishes(max_new_tokens=4),
                continuous_batching_config=settings(),
            )
        (name,) = caught.value.requests
        assert read(written.folder).ids == [name]
        with following(model, Forwards()):  # a new manager is not stopped by what the last one saw
            again = model.generate_batch(
                [[7, 8]],
                generation_config=wishes(max_new_tokens=2),
                continuous_batching_config=settings(),
            )
    assert [output.generated_tokens for output in again.values()] == [[LIKED] * 2]


@MODES
def test_a_fault_of_nanwatchs_own_leaves_the_engine_alone_and_shows_as_dropped_steps(
    *, is_async: bool, model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: room.Room, _logits: Tensor) -> Tensor:
        raise RuntimeError("made up")

    monkeypatch.setattr(room.Room, "count", broken)
    with nanwatch.watch_generate(model) as handle:
        outputs = run(model, Forwards({(2, 1): 5}), is_async=is_async)
        totals, found = written.report(handle.probe)
    assert {name: output.error for name, output in outputs.items()} == dict.fromkeys("abc")
    assert outputs["a"].generated_tokens == [LIKED] * 4
    assert (totals.steps, found) == (0, {})
    assert totals.dropped_steps["error"] >= 4


def test_what_could_not_be_counted_is_not_left_to_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing from NaN fails a whole batch, on a GPU with the device."""

    def broken(_self: room.Room, _logits: Tensor) -> Tensor:
        raise RuntimeError("made up")

    failed: list[Exception] = []
    monkeypatch.setattr(room.Room, "count", broken)
    logits = torch.full((1, 2, V), torch.nan)
    counting = CountingModel(lambda **_: SimpleNamespace(logits=logits), failed.append, for_sampling=True)
    counting(logits_to_keep=0, **{ROOM: room.Room(torch.zeros(4, dtype=torch.int32))})
    assert [str(error) for error in failed] == ["made up"]
    assert not logits.isnan().any()


def test_the_engines_own_error_does_not_carry_one_of_nanwatchs_with_it(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: room.Room, _rows: int) -> None:
        raise RuntimeError("made up")

    monkeypatch.setattr(room.Room, "empty", broken)
    with nanwatch.watch_generate(model):
        manager = manager_of(model)
        manager.warmup()
        with pytest.raises(Exception, match="not a model") as raised:
            manager.batch_processor.model_runner.compute_batch(NotAModel(), {})
    assert raised.value.__context__ is None


class NotAModel:
    """What no engine can call."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not a model")


def test_a_processor_that_cannot_be_watched_runs_on_as_it_was_made(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nanwatch.watch_generate(model) as handle:
        manager = manager_of(model)
        replace = processor.WatchedProcessor._replace

        def all_but_the_last(self: Any, owner: Any, name: str, around: Any) -> None:
            if name == "clear_cancelled_requests":
                raise AttributeError(name)
            replace(self, owner, name, around)

        monkeypatch.setattr(processor.WatchedProcessor, "_replace", all_but_the_last)
        manager.warmup()
        assert not any(
            isinstance(value, ReplacedMethod)
            for part in (manager.batch_processor, manager.batch_processor.model_runner)
            for value in vars(part).values()
        )
        add(manager, ABC)
        outputs = run_to_end(manager, 3)
        totals = written.totals(handle.probe)
    assert {output.error for output in outputs.values()} == {None}
    assert (totals.steps, totals.dropped_steps) == (0, {"error": 1})
