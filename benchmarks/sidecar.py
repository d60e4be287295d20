"""A real sidecar in a process of its own, for as long as a benchmark asks it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running_sidecar(journal: str) -> Iterator[int]:
    """Run a sidecar over a journal on a free port of the loopback, yield the port, and end it."""
    command = [sys.executable, "-m", "nanwatch_sidecar", "--listen", "127.0.0.1:0", "--journal", journal]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:  # noqa: S603
        assert process.stderr is not None  # noqa: S101  for the type checker
        try:
            yield next(
                int(found[1]) for line in process.stderr if (found := re.search(r"127\.0\.0\.1:(\d+)", line))
            )
        finally:
            process.terminate()
