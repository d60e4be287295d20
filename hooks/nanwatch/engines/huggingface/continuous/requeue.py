"""What is done to a request of the engine: ended with an error, or put back to be made anew.

By the engine's own means: `_handle_request_error` is how it fails a request that it cannot take, and
`create_equivalent_initial_request` how it moves one out of a cache that is full.
"""

from collections.abc import Mapping
from typing import Any

_WARNED = "warned_by_nanwatch"  # an attribute of the engine's state: gone with it


def end(processor: Any, state: Any, error: Exception) -> None:
    """Fail a running request; those that were to be forked off it never begin, and fail with it."""
    scheduler = processor.scheduler
    never_begun = [state.fork(f"{state.request_id}__child#{i}") for i in range(state.num_children)]
    _do_not_fork(scheduler, state)
    processor._handle_request_error(error, state)  # noqa: SLF001  the engine's own way
    scheduler.finish_request(state.request_id)
    scheduler.block_new_requests = False
    for child in never_begun:
        processor.output_router.fail_and_deliver(child, error)


def put_back(processor: Any, state: Any, *, warned: bool) -> None:
    """Put a running request back at the head of the queue, with the tokens that it has so far."""
    scheduler = processor.scheduler
    again = state.create_equivalent_initial_request()
    again.created_time, again._timestamps = state.created_time, state._timestamps  # noqa: SLF001  it leaves them out
    if warned or was_warned(state):
        setattr(again, _WARNED, True)
    _do_not_fork(scheduler, state)
    scheduler.finish_request(state.request_id)  # what is clean of its blocks stays in the prefix cache
    state._status = type(state.status).FINISHED  # noqa: SLF001  not by the setter, which dates the end
    scheduler.block_new_requests = False  # else, with nobody left to end, nobody would ever be let in again
    scheduler.waiting_requests[again.request_id] = again
    scheduler.waiting_requests_order.appendleft(again.request_id)


def was_warned(state: Any) -> bool:
    """Whether a request was given a last try: it held a bad value from the past."""
    return bool(getattr(state, _WARNED, False))


def keep_running(io: Any, running: Mapping[str, Any]) -> None:
    """Let a step that is in flight hand no token on to a request that is made anew under the same id.

    In asynchronous batching the next step takes its tokens by request id and by the order of these
    positions, so the place stays and the name goes.
    """
    states = {scheduled.state.request_id: scheduled.state for scheduled in io.requests_in_batch}
    io.req_id_to_new_token_position = {
        name if running.get(name) is states.get(name) else f"{name}\0gone": place
        for name, place in io.req_id_to_new_token_position.items()
    }


def without_those_that_left(
    scheduler: Any, batch: list[Any], tokens: list[int], logprobs: list[float] | None
) -> tuple[list[Any], list[int], list[float] | None]:
    """Return what the engine is to hand out of a step: nothing to whoever was ended, put back or cancelled.

    The engine leaves out by itself who finished, and meets a failed request, or one whose blocks are gone,
    as if it ran.
    """
    running = scheduler.active_requests
    kept = [scheduled for scheduled in batch if running.get(scheduled.state.request_id) is scheduled.state]
    if len(kept) == len(batch):
        return batch, tokens, logprobs
    keep = {id(scheduled) for scheduled in kept}
    rows = [scheduled for scheduled in batch if scheduled.has_new_token]
    taken = [row for row, scheduled in enumerate(rows) if id(scheduled) in keep]
    return (
        kept,
        [tokens[row] for row in taken],
        None if logprobs is None else [logprobs[row] for row in taken],
    )


def _do_not_fork(scheduler: Any, state: Any) -> None:
    scheduler._requests_to_fork = [one for one in scheduler._requests_to_fork if one is not state]  # noqa: SLF001
