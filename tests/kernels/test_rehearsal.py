"""benchmarks.gpu runs through on a stand-in for a GPU: its figures mean nothing, each part of it works."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the real thing is here: python -m benchmarks.gpu", allow_module_level=True)

from benchmarks import gpu
from benchmarks.cuda import correct, host, promises, speed
from nanwatch.row_kernel import RowKernel

CPU = torch.device("cpu")


class StandIn:
    """Stands for a card: records by remembering, and every replay takes one second by its clock."""

    name = "a stand-in"
    where = CPU
    l2_bytes = 4096

    def synchronize(self) -> None: ...

    def recorded(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        calls[0]()
        return lambda: [call() for call in calls]

    def seconds(self, replay: Callable[[], object], times: int = 5) -> float:
        replay()
        return 1.0


@pytest.fixture(scope="module")
def kernel() -> RowKernel:
    return RowKernel(multiprocessors=4)


def test_correctness_is_looked_at_in_all_layouts_and_a_wrong_kernel_is_found_out(kernel: RowKernel) -> None:
    assert correct.check(kernel, CPU, (1, 7), (1000,)) == (30, [])
    blind = RowKernel(multiprocessors=4)
    blind.launch = lambda _rows, cells, _shape: cells.zero_()  # type: ignore[method-assign,assignment]
    found = correct.check(blind, CPU, (7,), (1000,))
    assert (found.cases, len(found.wrong)) == (15, 15)


def test_speed_measures_every_contestant(kernel: RowKernel) -> None:
    shapes = ((8, 5000, torch.float32), (2, 5000, torch.bfloat16))
    lines = list(speed.lines(StandIn(), kernel, shapes, compiled=False))
    named = " ".join(line.what for line in lines)
    for contestant in ("nanwatch", "plain read", "eager", "one program a row", "into device memory"):
        assert contestant in named
    assert all(line.cells() for line in lines)


def test_the_rival_counts_right_too(kernel: RowKernel) -> None:
    from benchmarks.cuda.rivals import nans_by_row

    logits = torch.zeros(3, 9000)
    logits[1, [5, 8999]] = float("nan")
    counts = torch.full((3,), -1, dtype=torch.int32)
    nans_by_row(logits, counts)
    assert counts.tolist() == [0, 2, 0]


def test_the_host_side_is_measured(journal: Path) -> None:
    assert list(host.lines(StandIn(), (2,), 64, rounds=2))
    assert [line.spread.median for line in host.allocations(StandIn(), 2, 64, steps=3)] == [0, 0]


def test_every_promise_is_looked_at_and_kept(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises.no_wait, "__defaults__", (20,))
    monkeypatch.setattr(promises.no_gap, "__defaults__", (1,))
    monkeypatch.setattr(promises.nothing_read_early, "__defaults__", (50, 200))
    monkeypatch.setattr(torch, "mm", lambda a, _b: a)
    seen = list(promises.checks(StandIn()))
    assert [check for check in seen if not check.kept] == []
    assert [check.promise[:3] for check in seen] == ["(d)", "(d)", "(e)", "(e)", "(f)", "(g)"]


def test_the_table_is_put_between_the_marks_of_the_page_and_nothing_else_changes(tmp_path: Path) -> None:
    docs = tmp_path / "performance.md"
    docs.write_text(f"before\n{gpu.BEGIN}\nold\n{gpu.END}\nafter\n", encoding="utf-8")
    seen = [promises.Check("(d) waits for nothing", kept=True, seen="no alarm")]
    lines = list(host.allocations(StandIn(), 2, 64, steps=1))
    section = gpu.page("a card", correct.Outcome(3, []), seen, lines)
    gpu.write(docs, section)
    text = docs.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{gpu.BEGIN}\na card, torch")
    assert text.endswith(f"| met |\n{gpu.END}\nafter\n")
    assert "old" not in text
    with pytest.raises(ValueError, match="no place for the table"):
        gpu.write(Path(__file__), section)


def test_our_own_page_has_a_place_for_the_table() -> None:
    text = gpu.DOCS.read_text(encoding="utf-8")
    assert text.count(gpu.BEGIN) == text.count(gpu.END) == 1


def test_without_a_gpu_the_command_says_what_it_lacks_and_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from benchmarks import gpu; from benchmarks.cuda import correct\n"
        "correct.SMALL_ROWS, correct.SMALL_COLUMNS = (2,), (31,)\nraise SystemExit(gpu.main([]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "no CUDA device here: (b) to (g) were not run" in answer.stdout
    assert "(a) 15 of 15 cases right" in answer.stdout
