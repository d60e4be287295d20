"""What the other tests ask of the interpreter and of fakes, asked of a GPU; skipped where there is none."""

from pathlib import Path

import pytest
import torch

from benchmarks.cuda import correct, host, promises
from benchmarks.cuda.card import Card
from nanwatch import NanProbe
from nanwatch.inspection import make_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_the_kernel_can_be_had() -> None:
    pytest.importorskip("triton")
    assert make_kernel(torch.device("cuda")) is not None


def test_every_number_is_that_of_eager_torch() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    found = correct.check(make_kernel(device), device, (1, 2, 7, 32, 256), (1000, 128_256, 262_144))
    assert found.wrong == []


def test_logits_past_two_gigabytes_are_right() -> None:
    """R × V past 2^31."""
    device = torch.device("cuda", torch.cuda.current_device())
    found = correct.check(make_kernel(device), device, (8400,), (262_144,))
    assert found.wrong == []


@pytest.mark.parametrize(
    "check",
    [
        promises.no_wait,
        promises.no_gap,
        promises.capture_beside_watcher,
        promises.replay_with_counts,
        promises.nothing_read_early,
        promises.device_assert,
    ],
    ids=lambda check: check.__name__,
)
def test_what_never_happens_does_not_happen(journal: Path, check: object) -> None:
    found = check(Card())  # type: ignore[operator]
    assert found.kept, found.seen


def test_nothing_is_allocated_after_the_warm_up(journal: Path) -> None:
    assert [line.spread.median for line in host.allocations(Card())] == [0, 0]


def test_what_is_on_the_gpu_is_counted_and_charged(journal: Path) -> None:
    logits = torch.zeros(3, 1000, device="cuda", dtype=torch.bfloat16)
    logits[1, :5] = float("nan")
    with NanProbe(device="cuda") as probe:
        assert probe.observe(logits, ["a", "b", "c"]).result() == {"a": 0, "b": 5, "c": 0}
