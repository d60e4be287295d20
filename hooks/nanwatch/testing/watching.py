"""Watches every forward and every generate() of a test run, from the moment that torch is imported.

A generate() of Transformers is watched by its own adapter, which knows whose each row is and which
are padding; every other forward by its outermost module (outermost.py). Where Transformers has no
such seam, its forwards are looked at like any other's.
"""

import sys
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from nanwatch.import_hook import when_imported
from nanwatch.request_scope import current_scope

from .findings import Findings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nanwatch.probe import NanProbe

    from .outermost import OutermostLogits
    from .probe import CheckingProbe

_GENERATE = "nanwatch.engines.huggingface.generate"


class Watching:
    """What the tests' forwards hold; imports no torch, and does nothing until somebody has."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._forwards: OutermostLogits | None = None
        when_imported({"torch": self._watch_forwards, "transformers.generation.utils": self._watch_generate})

    def start(self) -> None:
        """Begin with nothing found: another test, or another phase of it."""
        self.findings = Findings()
        if self._forwards is not None:
            self._forwards.start_anew()

    def _watch_forwards(self, _torch: ModuleType) -> None:
        from .outermost import OutermostLogits

        self._forwards = OutermostLogits(self._look, self._is_in_generate)
        self._forwards.install()

    def _watch_generate(self, module: ModuleType) -> None:
        from nanwatch.engines.huggingface.attach import attach
        from nanwatch.engines.huggingface.shared_probes import PROBES
        from nanwatch.engines.seams import MissingSeamError

        PROBES.make = self._probe_of_generate
        with suppress(MissingSeamError):
            attach(module)

    def _probe_of_generate(self, model: "nn.Module", _name: str) -> "NanProbe":
        return cast("NanProbe", self._probe(model, phased=True))

    def _look(self, module: "nn.Module", logits: "Tensor") -> None:
        from nanwatch.engines.logits import ends_of, rows_per_sample
        from nanwatch.engines.made_up_ids import made_up_ids

        samples = logits.shape[0]
        scope = current_scope()
        named = scope is not None and len(scope.ids) == samples
        ids = scope.ids if scope is not None and named else made_up_ids(samples)
        self._probe(module, phased=False).observe(
            logits, ids, row_ends=ends_of(samples, rows_per_sample(logits))
        )

    def _probe(self, module: Any, *, phased: bool) -> "CheckingProbe":
        from .probe import CheckingProbe

        model = getattr(module, "_orig_mod", module)  # of one that torch.compile was given
        return CheckingProbe(lambda: self.findings, type(model).__name__, phased=phased)

    def _is_in_generate(self) -> bool:
        """Whether a generate() that we watch runs in this thread."""
        from .probe import CheckingProbe

        generate = sys.modules.get(_GENERATE)
        return generate is not None and isinstance(generate.probe_of_running_call(), CheckingProbe)
