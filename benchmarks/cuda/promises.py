"""What never happens on a GPU, each a check that says in words what it saw.

(d) a wait in `observe`  (e) a capture broken by the watcher, or a step lost to one  (f) a count that is read
before it landed  (g) a NaN that goes unreported because the sampler's device assert came after it
"""

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

from benchmarks.cuda.card import Device
from nanwatch import NanProbe, count_nans_per_row
from nanwatch.journal.reader import JournalReader

ROOT = Path(__file__).parents[2]
STEPS, COLUMNS = 10_000, 32_000
IN_FLIGHT = 32  # steps before the engine waits, as engines do; there are 64 slots
GAP_MICROSECONDS = 10


class Check(NamedTuple):
    """One promise, and whether it was kept."""

    promise: str
    kept: bool
    seen: str


def checks(card: Device) -> Iterator[Check]:
    """Look at every promise; the slowest takes some seconds."""
    for check in (
        no_wait,
        no_gap,
        capture_beside_watcher,
        replay_with_counts,
        nothing_read_early,
        device_assert,
    ):
        try:
            yield check(card)
        except Exception as error:  # noqa: BLE001  a finding; the others are looked at all the same
            yield Check(f"{check.__name__}", kept=False, seen=f"{type(error).__name__}: {error}")


def no_wait(card: Device, steps: int = 1000) -> Check:
    """(d) Observe under torch's alarm for synchronisation, with Event.synchronize out of reach."""
    logits = _logits(card, 8)
    ids = [f"r{i}" for i in range(8)]
    seen = []
    with NanProbe(device=card.where) as probe, _alarm(card):
        for step in range(steps):
            seen.append(probe.observe(logits, ids))
            if step % IN_FLIGHT == 0:
                time.sleep(0.01)  # as long as a model takes: the watcher gives the slots back
    dropped = sum(observation.dropped is not None for observation in seen)
    return Check(f"(d) {steps} observes wait for nothing", not dropped, f"no alarm, {dropped} dropped")


@contextmanager
def _alarm(card: Device) -> Iterator[None]:
    with mock.patch("torch.cuda.Event.synchronize", side_effect=AssertionError("observe waited on an event")):
        if card.where.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if card.where.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def no_gap(card: Device, steps: int = 50) -> Check:
    """(d) In a trace of matmuls with an observe after each, the device is never idle for long."""
    work = torch.randn(4096, 4096, device=card.where, dtype=torch.bfloat16)
    logits = _logits(card, 64)
    with NanProbe(device=card.where) as probe:
        probe.observe(logits, None)
        card.synchronize()
        with torch.profiler.profile(activities=_activities(card)) as profile:
            for _ in range(steps):
                for _ in range(4):
                    torch.mm(work, work)
                probe.observe(logits, None)
            card.synchronize()
    gap = _longest_gap(profile)
    return Check(
        "(d) no gap in the device's trace", gap <= GAP_MICROSECONDS, f"the longest is {gap:.1f} microseconds"
    )


def _activities(card: Device) -> list[torch.profiler.ProfilerActivity]:
    on_gpu = card.where.type == "cuda"
    return [torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU]


def _longest_gap(profile: torch.profiler.profile) -> float:
    """Return the longest time between two kernels, the first tenth left out: there the queue fills."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or ()  # type: ignore[no-untyped-call]
        if str(event.device_type).endswith("CUDA")
    )
    spans = spans[len(spans) // 10 :]
    gaps, busy_until = [0.0], float("inf")
    for start, end in spans:
        gaps.append(max(0.0, start - busy_until))
        busy_until = end if busy_until == float("inf") else max(busy_until, end)
    return max(gaps)


def capture_beside_watcher(card: Device) -> Check:
    """(e) Another thread captures in global mode while steps are pending and the watcher looks for them."""
    logits = _logits(card, 4)
    logits[2, :3] = float("nan")
    ids = [f"r{i}" for i in range(4)]
    failed: list[Exception] = []
    work = torch.randn(4096, 4096, device=card.where)
    torch.mm(work, work)
    with NanProbe(device=card.where) as probe:
        probe.observe(logits, ids).result()
        seen = []
        for _ in range(20):
            for _ in range(8):
                torch.mm(work, work)
            seen.append(probe.observe(logits, ids))  # pending for milliseconds
        capture = threading.Thread(target=_capture, args=(card, failed))
        capture.start()
        capture.join()
        right = [observation.result() == {"r0": 0, "r1": 0, "r2": 3, "r3": 0} for observation in seen]
    kept = not failed and all(right)
    return Check(
        "(e) a capture beside the watcher is not broken",
        kept,
        f"{sum(right)} of 20 steps right, {failed or 'captured'}",
    )


def _capture(card: Device, failed: list[Exception]) -> None:
    static = torch.zeros(1024, device=card.where)
    try:
        replay = card.recorded([lambda: static.add_(1)] * 200)
        replay()
    except Exception as error:  # noqa: BLE001  handed to the thread that judges
        failed.append(error)


def replay_with_counts(card: Device) -> Check:
    """(e) Count inside a graph, refuse to observe inside one, and observe the counts after each replay."""
    static = _logits(card, 4)
    counts = count_nans_per_row(static).clone()
    refused: list[str | None] = []
    ids = [f"r{i}" for i in range(4)]
    with NanProbe(device=card.where) as probe:

        def step() -> None:
            counts.copy_(count_nans_per_row(static))
            if card.where.type == "cuda" and torch.cuda.is_current_stream_capturing():
                refused.append(probe.observe(static, ids).dropped)

        replay = card.recorded([step])
        found = []
        for nans in (0, 7, 0, 2):
            static.zero_()
            static[1, :nans] = float("nan")
            replay()
            found.append(probe.observe_counts(counts, ids).result()["r1"])
    kept = found == [0, 7, 0, 2] and all(reason == "capture" for reason in refused)
    return Check("(e) counts of a replayed graph", kept, f"found {found}; observe in the capture: {refused}")


def nothing_read_early(card: Device, steps: int = STEPS, columns: int = COLUMNS) -> Check:
    """(f) Every step's dict against counts that are added up on the device and waited for at the end."""
    rows = 8
    ids = [f"r{i}" for i in range(rows)]
    got: queue.Queue[dict[str, int]] = queue.Queue()
    reference = torch.zeros(steps, rows, dtype=torch.int32, device=card.where)
    logits = torch.zeros(rows, columns, device=card.where)
    with NanProbe(device=card.where, queue=got) as probe:
        for step in range(steps):
            _plant(logits, step)
            torch.sum(logits.isnan(), -1, dtype=torch.int32, out=reference[step])
            probe.observe(logits, ids)
            if step % IN_FLIGHT == IN_FLIGHT - 1:
                card.synchronize()
                probe.flush()
        probe.flush(60)
    waited_for = reference.tolist()
    found = [list(got.get_nowait().values()) for _ in range(got.qsize())]
    wrong = sum(a != b for a, b in zip(found, waited_for, strict=False)) + abs(len(found) - steps)
    return Check(f"(f) {steps} steps against a reference that waits", wrong == 0, f"{wrong} differ")


def _plant(logits: Tensor, step: int) -> None:
    """Change the NaNs in every step: row `step % 8` gets `step % 100` of them, the others lose theirs."""
    logits.zero_()
    logits[step % logits.shape[0], : step % 100] = float("nan")


def device_assert(card: Device) -> Check:
    """(g) An engine of its own process: NaN, observe, multinomial's assert, death; its journal has it."""
    with tempfile.TemporaryDirectory(prefix="nanwatch-bench-") as folder:
        environment = {**os.environ, "NANWATCH_JOURNAL": str(Path(folder, "journal"))}
        command = [sys.executable, "-m", "benchmarks.cuda.asserting", str(card.where)]
        died = subprocess.run(  # noqa: S603  our own command
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )
        reader = JournalReader(Path(folder, "journal"))
        reader.poll()
        ids = [request.request_id for source in reader.sources for request in source.corrupted.values()]
        reader.close()
    last = died.stdout.strip().splitlines()[-1:] or died.stderr.strip().splitlines()[-1:]
    said = f"{ids}; the engine: {' '.join(last)}"
    return Check("(g) a NaN before a device assert is reported", ids == ["bad"], said)


def _logits(card: Device, rows: int, columns: int = COLUMNS) -> Tensor:
    return torch.zeros(rows, columns, device=card.where)
