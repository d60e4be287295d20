"""Where the counts of continuous batching are made, how they travel, and when they are read."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CompileConfig

import nanwatch
from nanwatch.engines.huggingface.continuous import processor
from nanwatch.engines.huggingface.continuous.room import Room
from tests.engines.huggingface.batches import (
    NAN,
    Forwards,
    LateCopy,
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

ABC = {"a": Prompt([7, 8, 9, 10]), "b": Prompt([7, 8]), "c": Prompt([11, 12, 13])}


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with quick_collections():
        yield tiny_llama()


def test_the_counts_are_the_last_row_of_the_engines_buffer(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model), following(model, Forwards({(2, 1): 5})):
        manager = manager_of(model)
        add(manager, {**ABC})
        manager.warmup()
        seen: list[tuple[list[int], int]] = []
        ios = manager.batch_processor.inputs_and_outputs
        before_it_is_read(ios, lambda: seen.append((ios.output_ids[-1, :3].tolist(), len(ios.output_ids))))
        run_to_end(manager, 3)
    assert seen == [([0, 0, 0], 2), ([0, 5, 0], 2), ([0, 0, 0], 2), ([0, 0, 0], 2)]


def test_a_room_says_that_a_step_is_clean_only_after_it_has_looked_and_found_nothing() -> None:
    room = Room(torch.zeros(4, dtype=torch.int32))
    said = [room.is_clean]
    for logits in (torch.zeros(1, 2, V), torch.full((1, 2, V), NAN), torch.zeros(1, 2, V)):
        room.count(logits)
        said.append(room.is_clean)
        assert room.row.tolist() == [int(logits[0, row].isnan().sum()) for row in range(2)] + [0, 0]
    room.empty(2)
    assert [*said, room.is_clean] == [False, True, False, True, False]


def test_what_a_compiled_step_left_in_the_row_does_not_outlast_a_clean_step() -> None:
    """It counts past the room's Python, which cannot know what is in the row then."""
    room = Room(torch.zeros(4, dtype=torch.int32))
    room.count(torch.zeros(1, 2, V))
    room.empty(2)
    room.row[:2] = torch.tensor([0, V], dtype=torch.int32)
    assert not room.is_clean
    room.empty(2)
    room.count(torch.zeros(1, 2, V))
    assert (room.is_clean, room.row.tolist()) == (True, [0, 0, 0, 0])


def before_it_is_read(ios: Any, look: Callable[[], object]) -> None:
    original = ios.prepare_batch_update

    def read() -> Any:
        look()
        return original()

    ios.prepare_batch_update = read


def test_with_two_buffers_counts_are_read_after_the_engine_has_waited_for_its_tokens(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def say_at(owner: Any, name: str, word: str) -> None:
        original = getattr(owner, name)

        def called(*args: Any) -> Any:
            said.append(word)
            return original(*args)

        monkeypatch.setattr(owner, name, called)

    say_at(LateCopy, "synchronize", "waited")
    say_at(processor.WatchedProcessor, "_observe", "read")
    say_at(processor.WatchedProcessor, "_counted", "launched")
    with two_buffers(), nanwatch.watch_generate(model), following(model, Forwards()):
        manager = manager_of(model, use_async_batching=True)
        add(manager, {"a": Prompt([7, 8], new_tokens=2)})
        run_to_end(manager, 1)
    # Step 3 was launched for nothing, before the second and last token was read.
    assert said == ["launched", "launched", "waited", "read", "launched", "waited", "read", "waited", "read"]


def test_raw_logits_are_counted_before_processors_mend_them(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle, following(model, Forwards({(2, 1): V})):
        manager = manager_of(
            model, generation=wishes(remove_invalid_values=True), drop_unsupported_processors=False
        )
        assert manager.logit_processor.do_processing
        add(manager, ABC)
        outputs = run_to_end(manager, 3)
        (found,) = written.corrupted(handle.probe).values()
    assert (found.request_id, found.values) == ("b", V)
    assert outputs["b"].status.name == "FINISHED"


def test_models_that_return_every_position_are_counted_where_the_engine_reads(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model), "_supports_logits_to_keep", lambda _self: False)
    # Positions of the first batch: a has 0 to 3, b 4 and 5, c 6 to 8; the last of each is read.
    with (
        nanwatch.watch_generate(model) as handle,
        following(model, Forwards({(1, 0): 1, (1, 4): 2, (1, 5): 3})),
    ):
        manager = manager_of(model)
        add(manager, ABC)
        run_to_end(manager, 3)
        totals, found = written.report(handle.probe)
    assert {name: request.values for name, request in found.items()} == {"b": 3}
    assert totals.padding_nan_rows == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_warm_up_requests_are_padding(*, is_async: bool, model: Any, written: Written) -> None:
    plan = Forwards({(1, 0): 3})
    with two_buffers(), nanwatch.watch_generate(model) as handle, following(model, plan):
        manager = manager_of(model, use_async_batching=is_async)
        manager.warmup()
        with torch.no_grad():
            manager.batch_processor.model_runner.run_one_warmup(model, num_q_tokens=4, max_kv_read=4)
        manager.batch_processor.cache.reset()
        add(manager, {"a": Prompt([7, 8])})
        outputs = run_to_end(manager, 1)
        totals, found = written.report(handle.probe)
    assert outputs["a"].generated_tokens == [LIKED] * 4
    assert (totals.padding_nan_rows, totals.requests, totals.rows, found) == (1, 1, 4, {})


def test_a_batch_that_is_read_again_because_of_an_error_is_counted_once(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle, following(model, Forwards({(1, 1): 5})):
        manager = manager_of(model)
        add(manager, ABC)
        manager.warmup()
        engine = manager.batch_processor
        assert engine.prepare_next_batch()
        engine._generation_step(model)
        engine.update_batch()
        engine.handle_batch_error(RuntimeError("made up"))
        totals, found = written.report(handle.probe)
    assert (totals.steps, totals.rows, totals.nan_values) == (1, 3, 5)
    assert list(found) == ["b"]
    assert found["b"].finished


def test_an_id_that_a_client_gives_again_while_it_runs_is_one_request_with_two_rows(
    model: Any, written: Written
) -> None:
    """As where a proxy tries a request again; what the engine makes of it is the engine's own affair."""
    with nanwatch.watch_generate(model) as handle:
        manager = manager_of(model)
        again = {1: lambda: add(manager, {"a": Prompt([11, 12])})}
        plan = Forwards({(2, 1): 5}, again)
        with following(model, plan):
            add(manager, {"a": Prompt([7, 8], new_tokens=6)})
            run_to_end(manager, 1)
        totals, found = written.report(handle.probe)
    assert plan.rows[:2] == [1, 2]
    assert {name: (request.rows, request.values) for name, request in found.items()} == {"a": (1, 5)}
    assert totals.dropped_steps == {}


@pytest.mark.parametrize("inference", [False, True])
def test_runs_in_inference_mode_as_outside_of_it(*, inference: bool, model: Any, written: Written) -> None:
    with (
        torch.inference_mode(inference),
        nanwatch.watch_generate(model) as handle,
        following(model, Forwards({(2, 0): 1})),
    ):
        outputs = model.generate_batch(
            [[7, 8], [9, 10]],
            generation_config=wishes(max_new_tokens=4),
            continuous_batching_config=settings(),
        )
        found = written.corrupted(handle.probe)
    assert len(found) == 1
    assert {name for name, output in outputs.items() if 0 in output.generated_tokens} == set(found)


def test_a_compiled_step_counts_in_its_graph(written: Written) -> None:
    """The engine compiles the function that calls the model; the count is traced with it."""
    model = tiny_llama()
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:1], 1
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with nanwatch.watch_generate(model) as handle, torch.no_grad():
        model.lm_head.weight[5] = NAN
        compiled = CompileConfig(backend=compiler, mode=None, fullgraph=False, dynamic=False)  # type: ignore[arg-type]
        manager = manager_of(model, varlen_compile_config=compiled)
        add(manager, {"a": Prompt([7, 8, 9], new_tokens=1)})
        run_to_end(manager, 1)
        (found,) = written.corrupted(handle.probe).values()
    assert (found.request_id, found.rows, found.values) == ("a", 1, 1)
    assert sum("isnan" in str(node.target) for graph in graphs for node in graph.graph.nodes) >= 1
