"""Several processes at once, one system call at a time, in an order that the test chooses.

A process stops only before calls whose effect on another one, or whose answer, depends on the order;
it reads and writes only what it has locked.
"""

import threading
from collections.abc import Callable, Iterable

from tests.journal.dying import Process

BETWEEN_PROCESSES = {"open", "close", "flock", "lstat", "ftruncate", "rename", "unlink"}


class Actor:
    """One process in a thread of its own; it stops before each system call until it is its turn."""

    def __init__(self, process: Process, play: Callable[[], object]) -> None:
        self._process, self._play = process, play
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done = False
        self.error: BaseException | None = None
        process.before_call = self._before
        self._thread.start()
        self._stopped.acquire()

    def step(self) -> None:
        """Let it make the call that it stands before, and come to the next one or to its end."""
        self._go.release()
        self._stopped.acquire()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._stop()
            self._play()
        except BaseException as error:  # noqa: BLE001  raised again in the test's thread
            self.error = error
        self.done = True
        self._process.before_call = lambda _: None
        self._stopped.release()

    def _before(self, call: str) -> None:
        if call in BETWEEN_PROCESSES:
            self._stop()

    def _stop(self) -> None:
        self._stopped.release()
        self._go.acquire()


def play(actors: list[Actor], order: Iterable[int], after_each: Callable[[], None]) -> None:
    """Step the actors in this order of indexes, then each to its end."""
    for index in order:
        if not actors[index].done:
            actors[index].step()
            after_each()
    for actor in actors:
        while not actor.done:
            actor.step()
            after_each()
