"""Real processes, killed at random while they write: what a commit returned for is there."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from nanwatch.journal.reader import JournalReader

ROUNDS, AT_ONCE = 16, 2
ROOT = Path(__file__).parents[2]


class Victim:
    """One life in a real process, and what it said before it was killed."""

    def __init__(self, folder: Path, life: str) -> None:
        self.committed = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.journal.under_load", folder, life], stdout=subprocess.PIPE, cwd=ROOT
        )

    def listen(self) -> None:
        """Take what it says of the commits that returned; the first one is its start."""
        assert self._process.stdout is not None
        self.committed += len(os.read(self._process.stdout.fileno(), 1))

    def kill(self) -> None:
        """Kill it, and take all that it has said."""
        assert self._process.stdout is not None
        self._process.kill()
        self.committed += len(self._process.stdout.read()) - 1
        self._process.stdout.close()
        self._process.wait()


def total_of(reader: JournalReader) -> int:
    reader.poll()
    return sum(source.totals.corrupted_requests for source in reader.sources)


def test_kills_at_random_under_load(tmp_path: Path) -> None:
    """Two processes with the same labels at a time; the next ones go on with their files."""
    chance = random.Random(4711)
    folder = tmp_path / "journal"
    reader = JournalReader(folder)
    committed = deaths = total = 0
    for number in range(ROUNDS):
        victims = [Victim(folder, f"life-{number}-{n}") for n in range(AT_ONCE)]
        for victim in victims:
            victim.listen()
        end = time.monotonic() + chance.uniform(0, 0.12)
        while time.monotonic() < end:
            total, before = total_of(reader), total
            assert total >= before
        for victim in victims:
            victim.kill()
            committed += victim.committed
            deaths += 1
        assert committed <= total_of(reader) <= committed + deaths  # the last line of each may be written
    assert reader.problems == ()
    keys = [key for source in reader.sources for key, _ in source.corrupted.items()]
    assert len(keys) == len(set(keys)) == total_of(reader)
    assert len(reader.sources) == len(list(folder.glob("*.jsonl"))) == AT_ONCE
    assert committed > 10 * ROUNDS
    reader.close()
    late = JournalReader(folder)
    assert total_of(late) == total_of(reader)
    late.close()
