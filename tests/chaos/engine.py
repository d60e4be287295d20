"""An engine under load that tells, in files that survive its death, what it observed and what it was told.

Runs in a forked child until it is killed. V = 32; a step has up to 8 requests, some of them corrupted.
    observed   ids with a NaN, written before observe is called
    returned   ids whose result() returned NaNs, or whose raise was seen
"""

import os
import random
from pathlib import Path

import torch

from nanwatch import NanLogitsError, NanProbe

V = 32


def run(folder: Path, name: str, seed: int) -> None:
    """Observe for ever; never returns."""
    choose = random.Random(seed)
    observed, returned = (_Diary(folder / kind) for kind in ("observed", "returned"))
    probe = NanProbe(model_name="chaos")
    step = 0
    while True:
        step += 1
        ids = [f"{name}-{step}-{row}" for row in range(choose.randint(1, 8))]
        logits = torch.zeros(len(ids), V)
        bad = [request_id for request_id in ids if choose.random() < 0.2]
        for request_id in bad:
            logits[ids.index(request_id), choose.randrange(V)] = float("nan")
        observed.write(bad)
        try:
            observation = probe.observe(logits, ids)
            if choose.random() < 0.3:
                returned.write([request_id for request_id, nans in observation.result().items() if nans])
        except NanLogitsError as error:
            returned.write(list(error.requests))
        probe.finish(ids)


class _Diary:
    """Appends ids, one write for each call: what was written survives a SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, ids: list[str]) -> None:
        if ids:
            os.write(self._descriptor, "".join(f"{request_id}\n" for request_id in ids).encode())
