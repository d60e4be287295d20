"""generate() with a compiled forward: the hook runs at every step, and the compiler gets the same graphs.

A hook that asks `is_compiling()` is traced away and silently never runs; one that is traced breaks the
graph. So both are asked here: what was counted, and what the compiler was given, node for node.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import CompileConfig, StoppingCriteria

import nanwatch
from tests.engines.huggingface.tiny import prompts, tiny_llama
from tests.engines.written import Written

PROMPTS = prompts([7, 8, 9], [7, 8, 9], [10, 11, 12])
TOKENS = 4


class Graphs:
    """A compiler that changes nothing, and remembers the nodes of each graph that it was given."""

    __name__ = "graphs"

    def __init__(self) -> None:
        self.nodes: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        self.nodes.append([f"{node.op} {node.target}" for node in graph.graph.nodes])
        return graph.forward

    def __deepcopy__(self, _memo: Any) -> "Graphs":
        return self  # a CompileConfig copies what it holds


class HeadThatAdds(nn.Module):
    """The model's head, and numbers [3, 1, V] that are added to its logits: a NaN that the graph takes in."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head
        self.added = nn.Buffer(torch.zeros(3, 1, head.out_features))

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden) + self.added
        return logits


class Plants(StoppingCriteria):
    """Plants a NaN in one row of one forward: it is asked after each, so it sets the stage for the next."""

    def __init__(self, head: HeadThatAdds, forward: int, row: int) -> None:
        self._head, self._forward, self._row, self._asked = head, forward, row, 0

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self._asked += 1
        self._head.added.zero_()
        if self._asked == self._forward - 1:
            self._head.added[self._row, 0, 5] = float("nan")
        return torch.zeros(3, dtype=torch.bool)


def by_generate_itself(_model: Any, graphs: Graphs) -> dict[str, Any]:
    config: Any = CompileConfig(backend=graphs, mode="default", fullgraph=True, dynamic=False)
    config._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": config}


def by_its_forward(model: Any, graphs: Graphs) -> dict[str, Any]:
    model.forward = torch.compile(model.forward, backend=graphs, fullgraph=True)
    return {"cache_implementation": "static"}


def by_the_module(model: Any, graphs: Graphs) -> dict[str, Any]:
    model.compile(backend=graphs, fullgraph=True)
    return {"cache_implementation": "static"}


WAYS = [by_generate_itself, by_its_forward, by_the_module]


@pytest.fixture(autouse=True)
def _nothing_was_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def model_with_head() -> Any:
    model = tiny_llama(layers=1)
    model.generation_config.eos_token_id = None
    model.lm_head = HeadThatAdds(model.lm_head)
    return model


def generate(model: Any, options: dict[str, Any], forward: int = 0, row: int = 0) -> None:
    plants = Plants(model.lm_head, forward, row)
    model.generate(**PROMPTS, **options, do_sample=False, max_new_tokens=TOKENS, stopping_criteria=[plants])


@pytest.mark.parametrize("way", WAYS)
def test_counts_every_step_and_the_compiler_gets_the_same_graphs(
    way: Callable[..., dict[str, Any]], written: Written
) -> None:
    graphs, model = Graphs(), model_with_head()
    options = way(model, graphs)
    generate(model, options)
    unwatched, breaks = list(graphs.nodes), dict(counters["graph_break"])
    assert unwatched, "nothing was compiled"
    # Compiled and run before it is watched: nothing is compiled anew, and every step is counted.
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(["a1", "b1", "c1"]):
            generate(model, options, forward=3, row=2)
        assert graphs.nodes == unwatched
        assert written.totals(handle.probe).steps == TOKENS
    # Watched before it is compiled: node for node the same graphs.
    torch.compiler.reset()
    counters.clear()
    graphs, model = Graphs(), model_with_head()
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(["a2", "b2", "c2"]):
            generate(model, way(model, graphs), forward=4, row=1)
        totals, found = written.report(handle.probe)
    assert (graphs.nodes, dict(counters["graph_break"])) == (unwatched, breaks)
    assert (totals.steps, totals.rows) == (2 * TOKENS, 2 * 3 * TOKENS)
    assert {name: (r.phase, r.first_step, r.rows, r.values) for name, r in found.items()} == {
        "c1": ("decode", 3, 1, 1),
        "b2": ("decode", 4, 1, 1),
    }


def test_a_callers_own_compiled_function_breaks_at_the_hook_and_nowhere_else() -> None:
    def outer(ids: Tensor) -> Tensor:
        tokens: Tensor = model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)
        return tokens

    model = tiny_llama(layers=1)
    with torch.no_grad():
        before = torch._dynamo.explain(outer)(PROMPTS["input_ids"])
    torch.compiler.reset()
    with nanwatch.watch_generate(model), torch.no_grad():
        after = torch._dynamo.explain(outer)(PROMPTS["input_ids"])
    assert (before.graph_break_count, after.graph_break_count) == (0, 1)
