"""The worker's side of abort: what is looked at, cleaned and reported, and in which order.

`Runner` stands for a vLLM runner, whose KV cache is real; `SlowCopy` for a GPU's copy engine, which lands
counts when the test says so. What a real vLLM does with it is in test_real_spared.py.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanwatch.engines.guard import Guard
from nanwatch.engines.vllm.containment.messages import Finding, Order, Scan, attach, finding_of
from nanwatch.engines.vllm.containment.worker_side import WorkerSide
from nanwatch.engines.vllm.output import Outlet
from nanwatch.engines.vllm.rows import Rows
from nanwatch.probe import NanProbe
from nanwatch.readback import SlotPool
from nanwatch.settings import SettingsError
from tests.hooks.slow_copy import SlowCopy
from tests.seen import read

NAN = float("nan")


class Runner:
    """Two layers of four blocks; a step notes what it finds in them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.layers = {name: SimpleNamespace(kv_cache=torch.ones(4, 2, 3).to(dtype)) for name in ("a", "b")}
        self.kv_cache_config = SimpleNamespace(
            num_blocks=4, kv_cache_groups=[SimpleNamespace(layer_names=["a", "b"])]
        )
        self.compilation_config = SimpleNamespace(static_forward_context=self.layers)
        self.found: list[list[float]] = []

    def initialize_kv_cache(self) -> None:
        """Nothing: it is there."""

    def execute_model(self, scheduler_output: Any) -> None:
        self.found.append(self.layers["b"].kv_cache[:, 0, 0].tolist())


class Watched:
    """A runner with its sides installed, and the steps it makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, journal: Path) -> None:
        monkeypatch.setenv("NANWATCH_ON_NAN", "abort")
        monkeypatch.setenv("NANWATCH_JOURNAL", str(journal))
        self.probe = NanProbe("tiny", "vllm", can_abort=True)
        guard = Guard("nanwatch in vLLM", self.probe)
        self.runner = Runner()
        self.side = WorkerSide(self.runner, self.probe, guard)
        self.outlet = Outlet(self.probe, guard, report=self.side.report)
        self.side.install()
        self.runner.initialize_kv_cache()

    def execute(self, order: Order | None = None) -> None:
        """Execute a step, with which an order comes."""
        step = SimpleNamespace()
        if order is not None:
            attach(step, order)
        self.runner.execute_model(step)

    def output(self, *rows: float) -> Any:
        """Return the output of a step with one row a request, of these values."""
        self.outlet.begin()
        self.outlet.observe(torch.tensor([[row] for row in rows]), Rows(["p", "q"][: len(rows)]))
        return self.outlet.deliver(SimpleNamespace())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a watched runner, and close its probe."""
    watched = Watched(monkeypatch, tmp_path / "journal")
    yield watched
    watched.probe.close()


def test_a_finding_goes_out_with_the_output_of_its_own_step(watched: Watched) -> None:
    assert finding_of(watched.output(1.0, 2.0)) is None
    assert finding_of(watched.output(1.0, NAN)) == Finding({"q": 1})
    assert finding_of(watched.output(1.0)) is None


def test_the_parts_of_a_step_are_added_up(watched: Watched) -> None:
    """A step that makes prompt logits too is observed twice."""
    watched.outlet.begin()
    for values in ([NAN, NAN], [1.0, NAN]):
        watched.outlet.observe(torch.tensor([values]), Rows(["p"]))
    assert finding_of(watched.outlet.deliver(SimpleNamespace())) == Finding({"p": 3})


def test_an_output_on_its_way_is_looked_at_only_when_vllm_has_waited_for_it(watched: Watched) -> None:
    """The copy of the counts is before that of the tokens in the stream: vLLM's own wait covers both."""
    order: list[str] = []

    class OnItsWay:
        def get_output(self) -> Any:
            order.append("vLLM waited")
            return SimpleNamespace()

    class Observed:
        def corrupted(self, timeout: float) -> dict[str, int]:
            order.append("counts read")
            return {"p": 1}

    watched.outlet.begin()
    watched.outlet._step = [Observed()]  # type: ignore[list-item]
    on_its_way = watched.outlet.deliver(OnItsWay())
    assert order == []
    assert finding_of(on_its_way.get_output()) == Finding({"p": 1})
    assert order == ["vLLM waited", "counts read"]


def test_an_order_is_carried_out_before_the_step_that_it_comes_with(watched: Watched) -> None:
    """Scanned as they are, zeroed, and only then computed with."""
    watched.runner.layers["b"].kv_cache[2, 1, 2] = NAN
    watched.execute(Order(1, scan=(1, 2), zero=(2,)))
    watched.execute()
    assert watched.runner.found == [[1, 1, 0, 1]] * 2
    assert finding_of(watched.output(1.0)) == Finding({}, (Scan(1, frozenset({2})),))
    assert finding_of(watched.output(1.0)) is None


def test_what_a_scan_found_goes_out_once_it_has_landed(watched: Watched) -> None:
    """Nobody waits for it: the first output that finds it there takes it along."""
    slow = SlowCopy()
    watched.side._slots = SlotPool(pinned=False, most_rows=16, slots=2, copy=slow)
    watched.runner.layers["a"].kv_cache[3] = NAN
    watched.execute(Order(1, scan=(3, 0)))
    assert finding_of(watched.output(1.0)) is None
    slow.land()
    assert finding_of(watched.output(1.0)) == Finding({}, (Scan(1, frozenset({3})),))


def test_blocks_that_nobody_could_look_at_count_as_poisoned_and_the_step_runs(watched: Watched) -> None:
    """Their readers end for it; a scan without an answer would hold the blocks for ever."""
    watched.side._slots = SlotPool(pinned=False, most_rows=1, slots=1)
    watched.execute(Order(1, scan=(0, 1), zero=(1,)))
    assert watched.runner.found == [[1, 0, 1, 1]]
    assert finding_of(watched.output(1.0)) == Finding({}, (Scan(1, frozenset({0, 1})),))


def test_what_was_done_is_in_the_journal(watched: Watched, tmp_path: Path) -> None:
    watched.runner.layers["b"].kv_cache[2] = NAN
    watched.execute(Order(1, scan=(2, 3), zero=(2,), aborted=2, quarantined=5))
    watched.execute(Order(2, released=4))
    watched.output(1.0)
    assert watched.probe.flush()
    totals = read(tmp_path / "journal").totals
    assert (totals.aborted_requests, totals.kv_poisoned_blocks) == (2, 1)
    assert (totals.quarantined_blocks, totals.released_blocks) == (5, 4)


def test_a_cache_that_cannot_be_cleaned_keeps_the_engine_from_starting(watched: Watched) -> None:
    runner = Runner(torch.uint8)
    WorkerSide(runner, watched.probe, Guard("nanwatch in vLLM", watched.probe)).install()
    with pytest.raises(SettingsError, match=r"cannot be had here: the KV cache of a is torch\.uint8.*; use"):
        runner.initialize_kv_cache()
