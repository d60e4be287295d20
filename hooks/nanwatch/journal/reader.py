"""The sidecar's side of the journal: follows every file in the folder, and only reads.

- each descriptor is held (inodes are reused); another inode at the path is opened anew, after
  the last lines of the old one were taken
- totals are kept by file id, each cell at its greatest, for as long as the reader lives: a
  file that vanished or cannot be read never lowers a counter
- the lock is probed and let go at once: free means dead, held without growth means not active
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .clock import boot_ns, clock_domain
from .decoding import decode
from .folder import SUFFIX
from .followed import Followed
from .line import LineError, ReportLine, StartLine
from .source import Source

_GROUP_HINT = "; NANWATCH_JOURNAL_GROUP, set for the engine, names a group that may read it"


class JournalReader:
    """Follows the files of one journal folder.

    `poll` is for one thread at a time. It waits for the disk without `lock`, and holds `lock`
    while sources change: another thread takes it to read them. `clock` is monotonic, in seconds. Past
    `most_files` new files are not followed, which is a problem: each takes a descriptor.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, most_files: int = sys.maxsize
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.lock = threading.Lock()
        self.unusable: str | None = (
            None  # why the folder could not be read at the last poll, though it is there
        )
        self._most_files = most_files
        self._domain = clock_domain()
        self._files: dict[str, Followed] = {}  # by path, a str: hundreds of Paths are slow to make and sort
        self._sources: dict[str, Source] = {}
        self._problems: dict[str, str] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source seen since the reader lives, in the order of their appearance; drills left out."""
        return tuple(source for source in self._sources.values() if not source.labels.is_drill)

    @property
    def drills(self) -> tuple[Source, ...]:
        """The sources that `nanwatch drill` wrote: what they hold never happened."""
        return tuple(source for source in self._sources.values() if source.labels.is_drill)

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read at the last poll, one sentence each."""
        return tuple(f"{path}: {reason}" for path, reason in sorted(self._problems.items()))

    def poll(self) -> None:
        """Take what is new in every file; never raises for the state of the folder."""
        problems: dict[str, str] = {}
        for path in self._paths(problems):
            try:
                problem = self._follow(path)
            except OSError as error:
                problem = error.strerror or str(error)
            if problem is not None:
                problems[path] = problem
        self._observe_locks()
        self._problems = problems

    def close(self) -> None:
        """Let all descriptors go; what was counted stays readable."""
        for path in tuple(self._files):
            self._let_go(path)

    def _paths(self, problems: dict[str, str]) -> list[str]:
        """Return what is listed and what is followed: a listing may miss a file that is just renamed."""
        try:
            with os.scandir(self.folder) as entries:
                listed = {entry.path for entry in entries if entry.name.endswith(SUFFIX)}
            self.unusable = None
        except OSError as error:
            hint = _GROUP_HINT if isinstance(error, PermissionError) else ""
            problems[str(self.folder)] = reason = f"the journal folder cannot be read: {error.strerror}{hint}"
            self.unusable = None if isinstance(error, FileNotFoundError) else reason
            listed = set()
        return sorted(listed | set(self._files))

    def _follow(self, path: str) -> str | None:
        """Take what is new at `path`; returns what is wrong with it."""
        file = self._files.get(path)
        if file is None and len(self._files) >= self._most_files:
            return f"not followed: {self._most_files} files are, and ulimit -n leaves no room for more"
        try:
            if file is None or not file.is_at(path):
                file = self._reopen(path)
        except FileNotFoundError:
            self._take_rest(path)
            self._let_go(path)
            return None
        self._take_new(file)
        return file.problem

    def _reopen(self, path: str) -> Followed:
        self._take_rest(path)
        file = Followed.open(path)
        self._let_go(path)
        self._files[path] = file
        return file

    def _take_rest(self, path: str) -> None:
        """Take the last lines of a file that is no longer at its path, as far as it can be read."""
        if path in self._files:
            with suppress(OSError):
                self._take_new(self._files[path])

    def _let_go(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def _take_new(self, file: Followed) -> None:
        for lines in file.new_lines():
            with self.lock:
                for raw in lines:
                    self._take(file, raw)

    def _take(self, file: Followed, raw: bytes) -> None:
        first = file.head.file
        if first is not None:
            self._take_next(file, raw, self._sources[first.file])
        elif file.refused is None:
            self._take_first(file, raw)

    def _take_first(self, file: Followed, raw: bytes) -> None:
        file.take_first(raw)
        first = file.head.file
        if first is not None:
            self._sources.setdefault(first.file, Source(first.file, first.labels))

    def _take_next(self, file: Followed, raw: bytes, source: Source) -> None:
        try:
            line = decode(raw, source.known)
        except LineError:
            file.skipped_lines += 1
            return
        if isinstance(line, StartLine | ReportLine):
            source.take(line, self._offset(source, line))

    def _offset(self, source: Source, line: StartLine | ReportLine) -> float:
        """Seconds from the line's boot clock to this reader's: exact under one boot, else on arrival."""
        life = line if isinstance(line, StartLine) else source.start
        comparable = life is not None and life.clock == self._domain and "unknown" not in self._domain
        boot = max(boot_ns(), line.boot_ns) if comparable else line.boot_ns
        return self.clock() - boot / 1e9

    def _observe_locks(self) -> None:
        held: dict[str, bool | None] = {}
        for file in self._files.values():
            first = file.head.file
            if first is not None and not held.get(first.file):
                held[first.file] = file.is_locked() if first.locked else None
        with self.lock:
            for source in self._sources.values():
                source.observe_lock(self.clock(), held=held.get(source.file, False))
