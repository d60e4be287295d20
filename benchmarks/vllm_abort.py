"""What NANWATCH_ON_NAN=abort costs a step of a real vLLM that makes no NaN: `make bench-vllm-abort`.

The engine of vllm_overhead.py, made with abort, takes turns: as it is, and with everything that abort
adds taken off, which is observe, and so once more, which tells how small a difference can be seen. As there,
what is compared is the CPU time of the engine's thread, the fastest of three steps in a row, in many rounds.
Beside it, all that abort adds to a clean step is called by itself. It needs vllm, so it is not among
`python -m benchmarks`.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.measure import OF_THE_MEDIAN, AtMost, Line, Spread, print_table, take_turns
from benchmarks.vllm_overhead import ENVIRONMENT, ROWS, VOCABULARY, Steps
from nanwatch.engines.vllm.containment.messages import order_of
from tests.engines.vllm.tiny import write_model

ROUNDS, BLOCK_SECONDS = 600, 0.04
GOAL = AtMost(1.0)  # for the lower end of the interval: 1.00 lies within it
ON_SCHEDULER = ("schedule", "update_from_output", "has_requests")


class Ways(Steps):
    """One engine, and two ways in which a step of it is taken."""

    def __init__(self, model: Path, dtype: str) -> None:
        super().__init__(model, dtype)
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._ending = {name: vars(self._scheduler)[name] for name in ON_SCHEDULER}
        self._cleaning = vars(self._runner)["execute_model"]
        self._outlet = _behind(vars(self._runner)["sample_tokens"], "_outlet")._outlet  # noqa: SLF001
        self._report = self._outlet._report  # noqa: SLF001  what abort adds is taken off and put on again
        self._side = _behind(self._ending["schedule"], "_quarantine")
        self._output = SimpleNamespace()
        clean = torch.zeros(ROWS, dtype=torch.int32)
        ids = [str(number) for number in range(ROWS)]
        self._seen = [self._outlet._probe.observe_counts(clean, ids)]  # noqa: SLF001

    def observe(self) -> None:
        """Take a step with nothing but a look."""
        for name in ON_SCHEDULER:
            vars(self._scheduler).pop(name, None)
        self._scheduler.defer_block_free = False
        self._runner.execute_model = self._cleaning.__wrapped__
        self._outlet._report = None  # noqa: SLF001
        self._step()

    def abort(self) -> None:
        """Take a step with all that abort needs."""
        vars(self._scheduler).update(self._ending)
        self._scheduler.defer_block_free = True
        self._runner.execute_model = self._cleaning
        self._outlet._report = self._report  # noqa: SLF001
        self._step()

    def added(self) -> None:
        """Do what abort adds to a clean step, without the step."""
        self._side._schedule(_nothing)  # noqa: SLF001
        self._side._has_requests(_something)  # noqa: SLF001
        order_of(self._output)
        self._report(self._seen, self._output)
        self._side._update_from_output(_nothing, None, self._output)  # noqa: SLF001


def _nothing(*_: object) -> None:
    """Stand for vLLM's own method."""


def _something() -> bool:
    return True


def _behind(method: Any, attribute: str) -> Any:
    """Return what was put around this method: the one that has such an attribute."""
    around = (getattr(cell.cell_contents, "__self__", None) for cell in method.__closure__)
    return next(found for found in around if hasattr(found, attribute))


def main(dtypes: list[str]) -> None:
    """Measure one dtype, float32 where none is named."""
    dtype = (dtypes or ["float32"])[0]
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(ENVIRONMENT | {"NANWATCH_JOURNAL": f"{place}/journal", "NANWATCH_ON_NAN": "abort"})
        with Ways(write_model(Path(place), VOCABULARY, positions=2048), dtype) as ways:
            contestants: dict[str, Any] = {
                "observe": ways.observe,
                "abort": ways.abort,
                "again": ways.observe,
            }
            # A block of no length has the fewest calls; the fastest: other load only slows a step down.
            rounds = take_turns(
                contestants, rounds=ROUNDS, block_seconds=0.0, stands_for_block=min, clock=time.thread_time
            )
            added = take_turns({"added": ways.added}, block_seconds=BLOCK_SECONDS)
    ratio = Spread.of_median(rounds.ratios("abort", "observe"))
    print_table(
        f"a step of vLLM without NaN, logits [{ROWS}, {VOCABULARY}] {dtype}, divided by one under observe",
        [
            Line("under abort", ratio),
            Line("... the lower end", Spread(*[ratio.low] * 3), GOAL),
            Line("under observe once more", Spread.of_median(rounds.ratios("again", "observe"))),
            Line("under observe, microseconds", Spread.of_median(s * 1e6 for s in rounds.seconds["observe"])),
            Line("what abort adds, by itself, microseconds", added.microseconds("added")),
        ],
        OF_THE_MEDIAN,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
