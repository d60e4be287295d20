"""What every way of watching returns: the probe, and the way to take everything off again."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from nanwatch.probe import NanProbe


class Watch:
    """A watched module; a context manager that ends the watching.

    Attributes:
        probe: what counts; closed at the end if it was made here, left alone if it was given.
    """

    def __init__(self, probe: NanProbe, *, owns_probe: bool) -> None:
        self.probe = probe
        self._undo = ExitStack()
        if owns_probe:
            self._undo.callback(probe.close)

    def on_close(self, undo: Callable[[], object]) -> None:
        """Have `undo` called by close, the last one first, and before the probe is closed."""
        self._undo.callback(undo)

    def close(self) -> None:
        """Leave the module as it was found; a second time does nothing."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
