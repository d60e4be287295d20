"""The probes of a process that was attached to as a whole: one for each model, made when it is first used."""

import threading
from typing import Any
from weakref import WeakKeyDictionary

from nanwatch.engines.module import device_of
from nanwatch.probe import NanProbe

RUNTIME = "transformers"

_probes: WeakKeyDictionary[Any, NanProbe] = WeakKeyDictionary()
_making = threading.Lock()


def probe_of(model: Any, *, counting: bool = True) -> NanProbe:
    """Return the probe of this model; NANWATCH_MODEL_NAME names it, or where the model came from.

    `counting` is asked for only where the probe is made: False on a rank whose tokens no client gets.

    Raises:
        SettingsError: fail-fast was asked for in words that are not understood.
    """
    with _making:
        probe = _probes.get(model)
        if probe is None:
            probe = NanProbe(model_name_of(model), RUNTIME, device=device_of(model), counting=counting)
            _probes[model] = probe
        return probe


def model_name_of(model: Any) -> str:
    """Return where the model came from, or its class."""
    return getattr(model, "name_or_path", "") or type(model).__name__
