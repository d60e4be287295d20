"""watch(): any module that returns logits, or any other tensor with a row for each sample."""

import asyncio
import copy
import io
import logging
import os
import pickle
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import nanwatch
from nanwatch import NanLogitsError, NanProbe
from nanwatch.engines.handle import Watch
from nanwatch.engines.made_up_ids import made_up_ids
from tests.engines.written import Written

NAN = float("nan")
V = 8


class Echo(nn.Module):
    """Returns what `shape` makes of its input: the test's way to say what the logits are."""

    def __init__(self, shape: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.shape = shape

    def forward(self, logits: Tensor) -> Any:
        return self.shape(logits * self.scale)


def clean(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def poisoned(row: int, values: int = 2, samples: int = 3) -> Tensor:
    logits = clean(samples, V)
    logits[row, :values] = NAN
    return logits


class Case(NamedTuple):
    shape: Callable[[Tensor], Any]
    output: Any = None


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(lambda x: x), id="tensor"),
        pytest.param(Case(lambda x: SimpleNamespace(logits=x)), id="attribute"),
        pytest.param(Case(lambda x: {"loss": x.sum(), "logits": x}), id="mapping"),
        pytest.param(Case(lambda x: (x, "cache")), id="tuple"),
        pytest.param(Case(lambda x: {"pooled": x}, output="pooled"), id="named key"),
        pytest.param(Case(lambda x: SimpleNamespace(pooled=x), output="pooled"), id="named attribute"),
        pytest.param(Case(lambda x: [None, x], output=lambda out: out[1]), id="function"),
        pytest.param(Case(lambda x: x.to(torch.bfloat16)), id="bfloat16"),
        pytest.param(Case(lambda x: x.to(torch.float16)), id="float16"),
        pytest.param(Case(lambda x: x.T.contiguous().T), id="not contiguous"),
    ],
)
def test_finds_the_rows_in_whatever_a_module_returns(case: Case, written: Written) -> None:
    module = Echo(case.shape)
    with nanwatch.watch(module, output=case.output) as handle, nanwatch.request_ids(["a", "b", "c"]):
        module(poisoned(1))
        found = written.corrupted(handle.probe)
    assert list(found) == ["b"]
    assert (found["b"].rows, found["b"].values) == (1, 2)


def test_a_sample_of_many_positions_owns_all_its_rows(written: Written) -> None:
    logits = clean(2, 3, V)
    logits[1, 1, :4] = NAN  # row 4 of [6, V]: past the end of a's rows, which is 3
    module = Echo()
    with nanwatch.watch(module) as handle, nanwatch.request_ids(["a", "b"]):
        module(logits)
        assert list(written.corrupted(handle.probe)) == ["b"]
        assert written.totals(handle.probe).rows == 6


def test_more_than_three_dimensions_are_all_the_samples_own(written: Written) -> None:
    logits = clean(2, 3, 5, V)
    logits[0, 2, 4, 0] = NAN  # row 14 of 30, the last of a's
    module = Echo()
    with nanwatch.watch(module) as handle, nanwatch.request_ids(["a", "b"]):
        module(logits)
        assert list(written.corrupted(handle.probe)) == ["a"]


def test_named_requests_live_until_their_block_ends(written: Written) -> None:
    module = Echo()
    with nanwatch.watch(module) as handle:
        with nanwatch.request_ids(["a", "b"]):
            for _ in range(3):
                module(poisoned(0, samples=2))
            assert not written.corrupted(handle.probe)["a"].finished
        ended = written.corrupted(handle.probe)["a"]
        assert (ended.finished, ended.rows, ended.first_step) == (True, 3, 1)
        assert written.totals(handle.probe).requests == 2
        with nanwatch.request_ids(["a", "c"]):
            module(clean(2, V))
        assert written.totals(handle.probe).requests == 4


def test_without_ids_each_sample_of_each_forward_is_a_request_of_its_own(written: Written) -> None:
    module = Echo()
    with nanwatch.watch(module) as handle:
        module(poisoned(2))
        module(poisoned(0))
        totals = written.totals(handle.probe)
        found = written.corrupted(handle.probe)
    assert (totals.requests, totals.corrupted_requests, totals.rows) == (6, 2, 6)
    assert all(request.finished for request in found.values())
    assert all(re.fullmatch(r"anon-[0-9a-f]{12}-\d+", name) for name in found)


def test_made_up_ids_are_never_the_same_twice() -> None:
    gathered: list[str] = []
    threads = [threading.Thread(target=lambda: gathered.extend(made_up_ids(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(gathered)) == 2000


def test_a_forked_child_makes_ids_up_under_a_name_of_its_own() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, made_up_ids(1)[0].encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert theirs.rpartition("-")[0] != made_up_ids(1)[0].rpartition("-")[0]


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c", "d"], []])
def test_a_wrong_number_of_ids_blames_nobody_and_swallows_nothing(
    ids: list[str], written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    module = Echo()
    with nanwatch.watch(module) as handle, nanwatch.request_ids(ids):
        for _ in range(5):
            assert module(poisoned(1)).shape == (3, V)
        totals = written.totals(handle.probe)
    assert (totals.corrupted_requests, totals.unattributed_nan_rows, totals.nan_values) == (0, 5, 10)
    said = [record.message for record in caplog.records if "unattributed" in record.message]
    assert len(said) == 1
    assert said[0].startswith(
        f"nanwatch.watch: {len(ids)} request ids for an output of shape [3, 8], expected"
    )


@pytest.mark.parametrize("named", [True, False])
def test_one_row_without_a_dimension_of_samples_is_counted_as_unattributed(
    named: bool,  # noqa: FBT001  a parameter of pytest
    written: Written,
) -> None:
    module = Echo(lambda x: x[1])
    with nanwatch.watch(module) as handle:
        if named:
            with nanwatch.request_ids(["a"]):
                module(poisoned(1))
        else:
            module(poisoned(1))
        totals = written.totals(handle.probe)
    assert (totals.requests, totals.corrupted_requests, totals.unattributed_nan_rows) == (0, 0, 1)


def test_an_output_without_logits_is_no_step_and_no_error(written: Written) -> None:
    module = Echo(lambda _: SimpleNamespace(logits=None))
    with nanwatch.watch(module) as handle:
        module(poisoned(1))
        totals = written.totals(handle.probe)
    assert (totals.steps, totals.dropped_steps) == (0, {})


def test_an_output_that_nobody_understands_is_logged_once_and_counted_each_time(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    module = Echo(lambda _: "text")
    with nanwatch.watch(module) as handle:
        assert [module(clean(1, V)) for _ in range(3)] == ["text"] * 3
    totals = written.totals(handle.probe)
    assert totals.dropped_steps == {"error": 3}
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    assert "no logits in str" in caplog.text


@pytest.mark.parametrize("compiled_by", ["torch.compile", "module.compile"])
def test_counts_under_torch_compile_without_a_graph_break(compiled_by: str, written: Written) -> None:
    torch.compiler.reset()
    module = Echo()
    called: nn.Module = module
    if compiled_by == "torch.compile":
        called = torch.compile(module, backend="eager", fullgraph=True)  # type: ignore[assignment]
    with nanwatch.watch(module) as handle, nanwatch.request_ids(["a", "b", "c"]):
        if compiled_by == "module.compile":
            module.compile(backend="eager", fullgraph=True)
        for _ in range(3):
            called(poisoned(1))
        assert written.totals(handle.probe).steps == 3
        assert written.corrupted(handle.probe)["b"].rows == 3


def test_counts_in_a_module_that_was_compiled_before_it_was_watched(written: Written) -> None:
    torch.compiler.reset()
    module = Echo()
    compiled = torch.compile(module, backend="eager")
    compiled(poisoned(1))
    with nanwatch.watch(module) as handle, nanwatch.request_ids(["a", "b", "c"]):
        compiled(poisoned(1))
        assert list(written.corrupted(handle.probe)) == ["b"]


def test_gradients_are_the_same_with_and_without_a_watch() -> None:
    def gradient(module: Echo) -> Tensor:
        module.zero_grad()
        module(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
        assert module.scale.grad is not None
        return module.scale.grad.clone()

    module = Echo().train()
    before = gradient(module)
    with nanwatch.watch(module):
        assert torch.equal(gradient(module), before)
        assert module(clean(1, V)).requires_grad


def test_fail_fast_comes_out_of_the_forward_and_nothing_else_does(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    module = Echo()
    with nanwatch.watch(module) as handle:
        with nanwatch.request_ids(["a", "b", "c"]), pytest.raises(NanLogitsError) as raised:
            module(poisoned(1))
        assert raised.value.requests == {"b": 2}
        assert written.corrupted(handle.probe)["b"].finished


def test_an_inert_probe_costs_no_file(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANWATCH_ENABLED", "0")
    module = Echo()
    with nanwatch.watch(module):
        module(poisoned(1))
    assert not written.folder.exists()


def test_two_threads_do_not_see_each_others_ids(written: Written) -> None:
    module = Echo()
    both_inside = threading.Barrier(2)

    def serve(handle: Watch, name: str, row: int) -> None:
        with nanwatch.request_ids([f"{name}-0", f"{name}-1"]):
            both_inside.wait(10)
            for _ in range(100):
                module(poisoned(row, samples=2))
            assert handle.probe.flush()

    with nanwatch.watch(module) as handle:
        threads = [
            threading.Thread(target=serve, args=(handle, name, row)) for name, row in (("x", 0), ("y", 1))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = written.corrupted(handle.probe)
    assert {name: request.rows for name, request in found.items()} == {"x-0": 100, "y-1": 100}


def test_two_tasks_of_one_loop_do_not_see_each_others_ids(written: Written) -> None:
    module = Echo()

    async def serve(name: str, row: int) -> None:
        with nanwatch.request_ids([f"{name}-0", f"{name}-1"]):
            await asyncio.sleep(0)
            await asyncio.to_thread(module, poisoned(row, samples=2))

    async def both() -> None:
        await asyncio.gather(serve("x", 0), serve("y", 1))

    with nanwatch.watch(module) as handle:
        asyncio.run(both())
        assert set(written.corrupted(handle.probe)) == {"x-0", "y-1"}


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(TypeError, match=r"^watch takes a torch\.nn\.Module, got function$"):
        nanwatch.watch(lambda x: x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "error"), [("abc", TypeError), (["a", 1], TypeError), (["a", "b", "a"], ValueError)]
)
def test_ids_that_are_none_are_refused_where_they_are_given(ids: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        nanwatch.request_ids(ids)


def test_closing_leaves_the_module_as_it_was(written: Written) -> None:
    module = Echo()
    before = {name: copy.copy(value) for name, value in vars(module).items()}
    handle = nanwatch.watch(module)
    module(clean(1, V))
    assert written.totals(handle.probe).steps == 1
    handle.close()
    handle.close()
    assert vars(module) == before
    module(poisoned(0))
    assert written.totals(handle.probe).steps == 1


def test_a_probe_that_was_given_stays_open(written: Written) -> None:
    module = Echo()
    with NanProbe("mine") as probe:
        with nanwatch.watch(module, probe=probe, phase="prefill") as handle:
            assert handle.probe is probe
            with nanwatch.request_ids(["a", "b", "c"]):
                module(poisoned(2))
        assert probe.observe(poisoned(0), ["x", "y", "z"]).result() == {"x": 2, "y": 0, "z": 0}
        assert written.corrupted(probe)["c"].phase == "prefill"


def test_copies_of_a_watched_module_are_not_watched(written: Written) -> None:
    module = nn.Linear(2, V)
    with nanwatch.watch(module) as handle:
        copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]  # noqa: S301  our own bytes
        for other in copies:
            assert other(clean(1, 2)).shape == (1, V)
        torch.save(module, io.BytesIO())
        assert written.totals(handle.probe).steps == 0
