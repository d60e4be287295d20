"""What the tests of the journal share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanwatch.journal import writer
from tests.journal.dying import Process


@pytest.fixture(scope="module")
def area(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the folders of these thousands of lives are: in memory if that can be had."""
    memory = Path("/dev/shm")  # noqa: S108
    if not memory.is_dir():
        yield tmp_path_factory.mktemp("lives")
        return
    path = Path(tempfile.mkdtemp(dir=memory, prefix="nanwatch-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    process.live()
    yield process
    process.end()


@pytest.fixture
def renews_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewal as often as twice the snapshot allows."""
    monkeypatch.setattr(writer, "RENEW_PAST_BYTES", 0)
