"""A journal of the test's own, and what stands in it."""

import os
from pathlib import Path

import pytest

from tests.engines.written import Written


@pytest.fixture(autouse=True)
def _only_our_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("NANWATCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NANWATCH_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "journal")
