"""What the journal costs the recorder's thread: `python -m benchmarks.journal`.

The yardstick is one bare write(2) of a line of the same length to a file of its own, on the same disk.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Line, print_table, take_turns
from nanwatch.journal.clock import boot_ns, clock_domain
from nanwatch.journal.folder import Folder
from nanwatch.journal.line import CorruptedRequest, Labels, StartLine
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter

LIFE = "a-life"
LABELS = Labels("model", "0", "torch", "0", "host", "0", "")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="nanwatch-bench-") as folder:
        print_table("one line of the journal, on the recorder's thread", list(_lines(Path(folder))))
        size = _file_after(Path(folder), 120_000) / 1e6
    print(f"a file after 120,000 corrupted requests, 500 a line: {size:.1f} MB")


def _lines(folder: Path) -> Iterator[Line]:
    rounds = take_turns(
        {
            "a heartbeat": _committing(folder / "heartbeat", 0),
            "1 corrupted request": _committing(folder / "one", 1),
            "1,000 corrupted requests": _committing(folder / "thousand", 1000),
            "write(2)": _bare_write(folder / "bare"),
        }
    )
    for name in ("a heartbeat", "1 corrupted request", "1,000 corrupted requests"):
        yield Line(f"{name}, microseconds", rounds.microseconds(name))
        yield Line(f"{name} / write(2)", rounds.ratio(name, "write(2)"))


def _committing(folder: Path, requests: int) -> Callable[[], object]:
    """Return a call that writes one line with so many new corrupted requests."""
    writer, numbers = _writer(folder), itertools.count()

    def commit() -> None:
        for _ in range(requests):
            writer.put(_request(next(numbers)))
        writer.commit(Totals())

    return commit


def _file_after(folder: Path, requests: int) -> int:
    writer = _writer(folder / "many")
    for first in range(0, requests, 500):
        for number in range(first, first + 500):
            writer.put(_request(number))
        writer.commit(Totals(corrupted_requests=first + 500))
    (file,) = (folder / "many").glob("*.jsonl")
    return file.stat().st_size


def _writer(folder: Path) -> JournalWriter:
    start = StartLine(LIFE, os.getpid(), "cpu", {}, clock_domain(), boot_ns(), 0.0, Totals())
    writer = JournalWriter(Folder(folder), LABELS, start)
    writer.commit(Totals())
    return writer


def _request(number: int) -> CorruptedRequest:
    return CorruptedRequest(LIFE, f"request-{number}", 0, 1, 0.0, boot_ns(), "decode", 1, 1, finished=True)


def _bare_write(path: Path) -> Callable[[], object]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = b"x" * 400 + b"\n"
    return lambda: os.write(descriptor, line)


if __name__ == "__main__":
    main()
