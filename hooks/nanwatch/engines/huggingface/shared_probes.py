"""Probes that models of one name on one device share, made with the first and closed after the last.

A model may be collected in any thread, in the middle of anything: the collector only puts a word in
a queue, and a thread of ours closes what nobody uses any more.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from torch import nn

from nanwatch.engines.module import device_of
from nanwatch.probe import NanProbe

RUNTIME = "transformers"

Make = Callable[[nn.Module, str], NanProbe]  # of a model, and the name that its probe gets


class Key(NamedTuple):
    """What models share a probe by."""

    name: str
    device: str


@dataclass(slots=True)
class _Shared:
    probe: NanProbe
    users: int = 0


class SharedProbes:
    """The probes of a process, each with the number of models that use it."""

    def __init__(self) -> None:
        self._shared: dict[Key, _Shared] = {}
        self.make: Make = _probe_of  # another one where tests are watched
        self.forget_parent()

    def take(self, model: nn.Module) -> tuple[NanProbe, Key]:
        """Return the probe of this model's name and device, and the key to leave it with.

        Raises:
            SettingsError: as NanProbe does.
        """
        key = Key(getattr(model, "name_or_path", "") or type(model).__name__, str(device_of(model)))
        with self._lock:
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = _Shared(self.make(model, key.name))
            shared.users += 1
            self._start_closer()
        return shared.probe, key

    def leave(self, key: Key) -> None:
        """Say that one model less uses a probe; a collector may, as it may SimpleQueue.put."""
        self._left.put(key)

    def forget_parent(self) -> None:
        """In a forked child: the thread stayed behind, and the lock may be held for ever."""
        self._lock = threading.Lock()
        self._left: SimpleQueue[Key] = SimpleQueue()
        self._closer: threading.Thread | None = None

    def _start_closer(self) -> None:
        if self._closer is None:
            self._closer = threading.Thread(target=self._close_unused, name="nanwatch-closer", daemon=True)
            self._closer.start()

    def _close_unused(self) -> None:
        while True:
            unused = self._without_one_user(self._left.get())
            if unused is not None:
                unused.close()

    def _without_one_user(self, key: Key) -> NanProbe | None:
        """Count one user less; return the probe if that was the last."""
        with self._lock:
            shared = self._shared[key]
            shared.users -= 1
            if shared.users:
                return None
            del self._shared[key]
            return shared.probe


def _probe_of(model: nn.Module, name: str) -> NanProbe:
    return NanProbe(name, runtime=RUNTIME, device=device_of(model))


PROBES = SharedProbes()
os.register_at_fork(after_in_child=PROBES.forget_parent)
