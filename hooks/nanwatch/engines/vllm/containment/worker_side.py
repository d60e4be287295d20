"""In a worker: what was found goes out with a step's own output, what is to be cleaned comes with a step.

The counts of a step are there when its output is: on a CPU since they were made; on a GPU their copy
stands in the engine's stream before the copies of the output, and vLLM has waited for those.
    engine's stream   counts, their copy, sampling | an event | the tokens' copy, waited for in get_output
So nothing more is waited for here, on any thread.

An order's scan and zeroing stand in the same stream before the step that the order came with, and after
all steps before it. What a scan found goes out with the first output after it has landed.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from nanwatch.engines.guard import Guard
from nanwatch.engines.vllm.replaced import replace
from nanwatch.findings import counts_of
from nanwatch.observation import Observation
from nanwatch.probe import NanProbe
from nanwatch.readback import Counts, SlotPool
from nanwatch.stop import LANDING_SECONDS, abort_refused

from .kv_cache import KVCache, NotUnderstoodError
from .messages import Finding, Order, Scan, attach, order_of

MOST_BLOCKS = 16_384  # in one scan; more than that are taken for poisoned
_SLOTS = 8


class Asked(NamedTuple):
    """A scan on its way: which blocks, and what was found in each, once it has landed."""

    order: int
    blocks: tuple[int, ...]
    found: Counts | None  # None: nobody could look

    def landed(self) -> bool:
        """Whether what was found is there; never waits."""
        return self.found is None or self.found.landed()

    def poisoned(self) -> frozenset[int]:
        """Return the blocks with NaN; where nobody could look, all of them."""
        if self.found is None:
            return frozenset(self.blocks)
        flags = counts_of(self.found.take())
        return frozenset(block for block, flag in zip(self.blocks, flags, strict=True) if flag)


class EveryRank:
    """Zeroes what it is told to in the shard of one rank; all ranks are handed the same orders."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._cache: KVCache | None = None

    def install(self) -> None:
        """Put the methods around the runner's own."""
        replace(self._runner, "initialize_kv_cache", self._initialize_kv_cache)
        replace(self._runner, "execute_model", self._execute_model)

    def carry_out(self, order: Order) -> None:
        """Do what has to be done before the step that the order comes with."""
        if order.zero and self._cache is not None:
            self._cache.zero(order.zero)

    def _initialize_kv_cache(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Look at the cache as soon as it is there.

        Raises:
            SettingsError: it cannot be cleaned.
        """
        result = original(*args, **kwargs)
        try:
            self._cache = KVCache.of(self._runner)
        except NotUnderstoodError as error:
            raise abort_refused(str(error)) from None
        return result

    def _execute_model(self, original: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        order = order_of(scheduler_output)
        if order is not None:
            self.carry_out(order)
        return original(scheduler_output, *args, **kwargs)


class WorkerSide(EveryRank):
    """Carries orders out in the rank whose output reaches the scheduler, and reports what was found in it."""

    def __init__(self, runner: Any, probe: NanProbe, guard: Guard) -> None:
        super().__init__(runner)
        self._probe, self._guard = probe, guard
        self._slots: SlotPool | None = None
        self._asked: deque[Asked] = deque()

    def report(self, step: Sequence[Observation], output: Any) -> Any:
        """Return the output of a step with what was found in it, and by scans, if anything."""
        nans: dict[str, int] = {}
        for observation in step:
            for request_id, values in (self._guard.run(_corrupted, observation) or {}).items():
                nans[request_id] = nans.get(request_id, 0) + values
        scans = self._landed() if self._asked else ()
        if nans or scans:
            attach(output, Finding(nans, scans))
        return output

    def carry_out(self, order: Order) -> None:
        """Count, scan, and then zero."""
        self._guard.run(self._count, order)
        if order.scan:
            found = self._guard.run(self._scan, order.scan)
            self._asked.append(Asked(order.number, order.scan, found))
        self._guard.run(super().carry_out, order)

    def _count(self, order: Order) -> None:
        self._probe.count_contained(
            aborted_requests=order.aborted,
            quarantined_blocks=order.quarantined,
            released_blocks=order.released,
        )

    def _initialize_kv_cache(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the slots for what scans find too: pinned memory is not to be made while the engine runs."""
        result = super()._initialize_kv_cache(original, *args, **kwargs)
        if self._slots is None and self._cache is not None:
            self._slots = SlotPool(pinned=self._cache.on_gpu, most_rows=MOST_BLOCKS, slots=_SLOTS)
        return result

    def _scan(self, blocks: Sequence[int]) -> Counts | None:
        if self._cache is None or self._slots is None:
            return None
        sent = self._slots.send(self._cache.scan(blocks))
        return None if isinstance(sent, str) else sent

    def _landed(self) -> tuple[Scan, ...]:
        scans = []
        while self._asked and self._asked[0].landed():
            asked = self._asked.popleft()
            scans.append(Scan(asked.order, asked.poisoned()))
            self._probe.count_contained(kv_poisoned_blocks=len(scans[-1].poisoned))
        return tuple(scans)


def _corrupted(observation: Observation) -> dict[str, int]:
    return observation.corrupted(LANDING_SECONDS)
