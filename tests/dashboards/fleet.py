"""Two replicas of two ranks each, busy all the time, without torch: four sources in one journal."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.engine import Engine

PAUSE_SECONDS = 0.2


class Fleet:
    """Rank 0 of each replica counts; rank 1 only annotates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._counting = [self._rank(replica, 0) for replica in (0, 1)]
        self._annotating = [self._rank(replica, 1) for replica in (0, 1)]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Serve requests, a few times a second, until this ends."""
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(5)
            for engine in (*self._counting, *self._annotating):
                engine.die()

    def corrupt(self, *request_ids: str) -> None:
        """Let requests of the first replica come out as NaN: both of its ranks see it."""
        with self._lock:
            for engine in (self._counting[0], self._annotating[0]):
                engine.totals.add_delay(0.004)
                engine.corrupt(*request_ids)

    @contextmanager
    def with_a_dead_hook(self) -> Iterator[None]:
        """Add an engine of model "skipped" that lives, and whose runner goes past the hook."""
        engine = Engine(self.folder, model_name="skipped", host="node-3", uuid="GPU-9")
        over = threading.Event()
        thread = threading.Thread(target=_beat, args=(engine, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(5)
            engine.die()

    def _serve(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            with self._lock:
                for engine in self._counting:
                    engine.serve(5)
                for engine in self._annotating:
                    engine.write()

    def _rank(self, replica: int, rank: int) -> Engine:
        return Engine(
            self.folder,
            f"life-{replica}",
            counting=rank == 0,
            replica=str(replica),
            rank=str(rank),
            host=f"node-{replica + 1}",
            uuid=f"GPU-{2 * replica + rank}",
        )


def _beat(engine: Engine, over: threading.Event) -> None:
    with suppress(OSError):
        while not over.wait(PAUSE_SECONDS):
            engine.write()
