"""What really happened in a journal folder, and a reader that is compared with it all the time.

A life is a script, one letter a step:
    c commit     1 a new corrupted request, and commit     f the newest one finishes, and commit
and what somebody else does to the file meanwhile:
    T cuts it to half     Z to nothing     G writes half a line into it     D deletes it
    R puts a file of their own in its place     F deletes the folder     M moves the folder away
    B moves it back
"""

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nanwatch.journal.fold import Fold
from nanwatch.journal.reader import JournalReader
from tests.engine import LABELS
from tests.journal.dying import Process

Key = tuple[str, str, int]


class Truth:
    """Observed, committed, and what a reader makes of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.observed: set[Key] = set()
        self.committed: set[Key] = set()
        self.hidden = 0  # commits that somebody else took back by cutting a file whose life then died
        self.lives = 0
        self.total = 0
        self.reader = JournalReader(folder)

    def check(self) -> None:
        """Poll, and hold what the reader says against what happened."""
        self.reader.poll()
        total = sum(source.totals.corrupted_requests for source in self.reader.sources)
        keys = [key for source in self.reader.sources for key, _ in source.corrupted.items()]
        assert total >= self.total, f"the sum fell from {self.total} to {total}"
        assert total >= len(self.committed) - self.hidden
        assert total <= len(self.observed)
        assert len(keys) == len(set(keys)), "one request in two sources"
        assert self.committed <= set(keys) <= self.observed
        assert self.hidden or total == len(keys)
        self.total = total

    def check_exact(self) -> None:
        """All that was observed is there."""
        self.check()
        assert self.total == len(self.observed)

    def check_late(self) -> None:
        """... also to a reader that starts now; not so where files of ended lives were deleted."""
        late = JournalReader(self.folder)
        late.poll()
        assert sum(source.totals.corrupted_requests for source in late.sources) == self.total
        late.close()

    def close(self) -> None:
        """Let the files go."""
        self.reader.close()


class Life:
    """One life of one source, in a process that may die at any time."""

    def __init__(self, truth: Truth, process: Process) -> None:
        truth.lives += 1
        self.name = f"life-{truth.lives}"
        self._truth, self._line = truth, process.module("line")
        self._hidden_before = truth.hidden
        self._mine: set[Key] = set()
        self._newest: Any = None
        self._totals = self._line.Totals()
        start = self._line.StartLine(
            life=self.name,
            pid=truth.lives,
            device="cpu",
            versions={},
            clock="boot/time",
            boot_ns=truth.lives,
            wall_seconds=1.0,
            totals=self._line.Totals(),
        )
        folder = process.module("folder").Folder(truth.folder)
        labels = self._line.Labels(**asdict(LABELS))
        self.writer = process.module("writer").JournalWriter(folder, labels, start, _no_clock)

    def run(self, script: str) -> int:
        """Do what the script says; returns how many commits failed."""
        failed = 0
        for letter in script:
            if letter in _DAMAGE:
                _DAMAGE[letter](self._truth, self.writer.path)
                continue
            failed += not self._step(letter)
            self._truth.check()
        return failed

    def _step(self, letter: str) -> bool:
        if letter == "1":
            self._observe()
        if letter == "f":
            self.writer.put(replace(self._newest, finished=True))
        return self._commit()

    def _observe(self) -> None:
        self._newest = self._line.CorruptedRequest(
            life=self.name,
            request_id=f"request-{len(self._mine)}",
            n=0,
            first_step=1,
            first_seen_seconds=1.0,
            first_seen_boot_ns=1,
            phase="decode",
            rows=1,
            values=1,
        )
        self._mine.add(self._newest.key)
        self._truth.observed.add(self._newest.key)
        self._totals.corrupted_requests += 1
        self.writer.put(self._newest)

    def _commit(self) -> bool:
        try:
            self.writer.commit(self._totals)
        except OSError:
            return False
        self._truth.committed |= self._mine
        self._truth.hidden = self._hidden_before
        return True


def _no_clock() -> float:
    return 0.0


def _note_rolled_back(truth: Truth) -> None:
    """Note what the files no longer say: if their life dies before it heals them, it stays hidden.

    The next life goes on from what the file says, and a reader takes the greatest total.
    """
    said = {source.file: source.totals.corrupted_requests for source in truth.reader.sources}
    for path in truth.folder.glob("*.jsonl"):
        fold = Fold()
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                fold.take(line)
        if fold.file is not None:
            truth.hidden += said[fold.file.file] - fold.totals.corrupted_requests


def _cut(truth: Truth, path: Path | None) -> None:
    if path is not None:
        truth.check()
        os.truncate(path, path.stat().st_size // 2)
        _note_rolled_back(truth)


def _empty(truth: Truth, path: Path | None) -> None:
    if path is not None:
        truth.check()
        os.truncate(path, 0)


def _grow(_: Truth, path: Path | None) -> None:
    if path is not None:
        with path.open("ab") as file:
            file.write(b'{"kind":"report","totals":')


def _delete(truth: Truth, path: Path | None) -> None:
    if path is not None:
        truth.check()
        path.unlink()


def _replace(truth: Truth, path: Path | None) -> None:
    if path is not None:
        truth.check()
        foreign = path.with_suffix(".foreign")
        foreign.write_text("something else\n")
        foreign.rename(path)


def _delete_folder(truth: Truth, _: Path | None) -> None:
    truth.check()
    shutil.rmtree(truth.folder)


def _move_away(truth: Truth, _: Path | None) -> None:
    truth.check()
    truth.folder.rename(truth.folder.with_suffix(".away"))


def _move_back(truth: Truth, _: Path | None) -> None:
    truth.check()
    shutil.rmtree(truth.folder, ignore_errors=True)  # there may be none yet
    truth.folder.with_suffix(".away").rename(truth.folder)
    _note_rolled_back(truth)


_DAMAGE = {
    "T": _cut,
    "Z": _empty,
    "G": _grow,
    "D": _delete,
    "R": _replace,
    "F": _delete_folder,
    "M": _move_away,
    "B": _move_back,
}
