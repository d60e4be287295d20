"""What every test shares: a journal folder of its own, and nothing of the caller's or of another test's."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nanwatch import lifecycle

if not torch.cuda.is_available():
    # Triton reads it when it is imported: kernels then run in its interpreter, on the CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test without the caller's NANWATCH_ variables, and off every hub."""
    for name in [name for name in os.environ if name.startswith("NANWATCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def no_probe_is_left() -> Iterator[None]:
    """A probe that nobody closed would write once a second into whatever test comes later.

    Those of dead models are closed by a thread, soon.
    """
    living, before = lifecycle._living, set(lifecycle._living)
    yield
    deadline = time.monotonic() + 30
    while left := living - before:
        assert time.monotonic() < deadline, f"the test left {len(left)} probes running"
        time.sleep(0.01)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal folder that is not there yet, named by NANWATCH_JOURNAL."""
    folder = tmp_path / "journal"
    monkeypatch.setenv("NANWATCH_JOURNAL", str(folder))
    return folder
