"""In EngineCore: what a worker found ends its requests, before the scheduler looks at their tokens.

    update_from_output(step N)   Finding of step N: hold the blocks, finish the requests with an error,
                                 then the original: it passes over requests that are finished
    schedule()                   an Order about blocks whose last step is done goes with this step

With asynchronous scheduling step N + 1 runs already, with the request in it: what it makes is passed
over too, and its blocks are not touched before it is done. The same for a request that left in between,
because its client hung up: vLLM's own deferral of frees, made for KV connectors, is switched on, so that
blocks come back only when no step that may write to them is in flight.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from nanwatch.engines.vllm.client_ids import client_id
from nanwatch.engines.vllm.replaced import replace

from .messages import Finding, attach, finding_of
from .quarantine import Quarantine
from .reasons import reason_of_nan, reason_of_neighbour

MOST_NAMES = 5

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("nanwatch")


class Ended(NamedTuple):
    """A request that is ended here, and what its client is told."""

    request: Any
    values: int
    reason: str


class SchedulerSide:
    """Ends corrupted requests of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._quarantine = Quarantine(self._manager.block_pool)
        self._left: dict[str, tuple[int, list[Any]]] = {}  # (last step, blocks) of who left in flight

    def install(self) -> None:
        """Put the methods around the scheduler's own."""
        self._scheduler.defer_block_free = True
        replace(self._scheduler, "schedule", self._schedule)
        replace(self._scheduler, "update_from_output", self._update_from_output)
        replace(self._scheduler, "has_requests", self._has_requests)
        replace(self._manager, "pop_blocks_for_free", self._pop_blocks_for_free)

    def _schedule(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        order = _tried(self._quarantine.order, self._scheduler.processed_step_seq)
        scheduler_output = original(*args, **kwargs)
        if order is not None:
            attach(scheduler_output, order)
        return scheduler_output

    def _has_requests(self, original: Any) -> Any:
        """Have an idle engine make one more step, an empty one, where blocks wait to be cleaned."""
        return original() or self._quarantine.is_due(self._scheduler.processed_step_seq)

    def _update_from_output(self, original: Any, scheduler_output: Any, output: Any) -> Any:
        finding = finding_of(output)
        if finding is None:
            results = original(scheduler_output, output)
        else:
            ended = self._contain(finding)
            results = original(scheduler_output, output)
            _tell(ended, results)
        if self._left:
            self._forget_who_left()
        return results

    def _contain(self, finding: Finding) -> list[Ended]:
        """Hold the blocks of the corrupted, and of who reads blocks that hold NaN; end them all."""
        ended = self._corrupted(finding.nans)
        dirty = _tried(self._quarantine.learn, finding.scans)
        if dirty:
            ended += self._readers_of(dirty, known={end.request.request_id for end in ended})
        self._end(ended)
        return ended

    def _corrupted(self, nans: Mapping[str, int]) -> list[Ended]:
        ended = []
        for request_id, values in nans.items():
            request = self._scheduler.requests.get(request_id)
            if request is not None and not request.is_finished():
                ended.append(Ended(request, values, reason_of_nan(values)))
            elif request_id in self._left:
                fence, blocks = self._left[request_id]
                _tried(self._quarantine.hold, blocks, fence)
        return ended

    def _readers_of(self, dirty: frozenset[int], known: set[str]) -> list[Ended]:
        return [
            Ended(request, 0, reason_of_neighbour(len(shared)))
            for request in self._scheduler.running
            if request.request_id not in known
            and (shared := dirty.intersection(block.block_id for block in self._blocks_of(request)))
        ]

    def _end(self, ended: Iterable[Ended]) -> None:
        from vllm.v1.request import RequestStatus

        requests = [end.request for end in ended]
        if not requests:
            return
        for request in requests:
            _tried(self._hold, request)
        self._scheduler.finish_requests(
            [request.request_id for request in requests], RequestStatus.FINISHED_ERROR
        )
        self._quarantine.count_aborted(len(requests))
        logger.warning("nanwatch ended %s; all others run on", _named(ended))

    def _hold(self, request: Any) -> None:
        self._quarantine.hold(self._blocks_of(request), self._scheduler.sched_step_seq)

    def _blocks_of(self, request: Any) -> list[Any]:
        return [block for group in self._manager.get_blocks(request.request_id).blocks for block in group]

    def _pop_blocks_for_free(self, original: Any, request: Any) -> Any:
        blocks = original(request)
        self._left[request.request_id] = (self._scheduler.sched_step_seq, list(blocks))
        return blocks

    def _forget_who_left(self) -> None:
        done = self._scheduler.processed_step_seq
        self._left = {name: (fence, blocks) for name, (fence, blocks) in self._left.items() if fence > done}


def _tried(action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what `action` returns; where it fails, the requests still end, only their blocks are not held.

    Who is given such a block shows NaN and ends in its turn: an error more, and no garbage.
    """
    try:
        return action(*args, **kwargs)
    except Exception:
        logger.exception("nanwatch could not keep KV blocks with NaN from reuse; who gets them will end too")
        return None


def _tell(ended: Iterable[Ended], results: dict[int, Any]) -> None:
    """Add what the clients are told to what goes to their API servers."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    for request, values, reason in ended:
        told = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=request.get_finished_reason(),
            stop_reason=reason,
            events=request.take_events(),
            trace_headers=request.trace_headers,
            num_nans_in_logits=values,
        )
        to = results.get(request.client_index)
        if to is None:
            results[request.client_index] = EngineCoreOutputs(outputs=[told])
        else:
            to.outputs = [*to.outputs, told]


def _named(ended: Iterable[Ended]) -> str:
    """Name a few of them, as their clients do: "my-1 (NaN in its logits: 7 values), and 3 more"."""
    texts = [f"{client_id(end.request.request_id)} ({end.reason})" for end in ended]
    more = f", and {len(texts) - MOST_NAMES} more" if len(texts) > MOST_NAMES else ""
    return ", ".join(texts[:MOST_NAMES]) + more
