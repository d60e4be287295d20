"""A journal of a benchmark's own, gone afterwards."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_journal() -> Iterator[Path]:
    """Point NANWATCH_JOURNAL at a new folder; every other NANWATCH_ variable is out of the way."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("NANWATCH_")}
    with tempfile.TemporaryDirectory(prefix="nanwatch-bench-") as folder:
        os.environ["NANWATCH_JOURNAL"] = str(Path(folder, "journal"))
        try:
            yield Path(folder, "journal")
        finally:
            del os.environ["NANWATCH_JOURNAL"]
            os.environ.update(kept)
