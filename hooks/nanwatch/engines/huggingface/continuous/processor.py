"""One batch processor of the engine: what it launched, and what came of it.

    R = rows that are read of a step, M = places in a buffer (most tokens of a batch, plus one)
    buffer of tokens [1, M]  becomes  [2, M]      row 0: tokens    row -1: NaNs in the logits behind each
With log probabilities it has two rows and becomes three. Whatever the engine does with its buffer (a copy
to the host of its own stream, two buffers in turn) happens to the counts, and they are read at the moment
when it reads its tokens, before anybody is given one.

    compute_batch          the step is launched: the model is handed over as a CountingModel
    prepare_batch_update   its tokens are read, and so are its counts: once for each launch, also where
                           the engine reads a second time to say which requests an error hit
    fail_all_requests      the engine gives up: steps that were launched and never read are looked at if
                           their counts landed. Sampling from NaN raises (on a GPU, in the device itself,
                           and nothing can be copied from it any more), so this is where such a NaN shows.
                           For that the counts of a GPU are also copied to pinned memory, before sampling.
    run_one_warmup         made-up requests: all padding
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from torch import Tensor

from nanwatch.engines.guard import DROP_REASON, Guard
from nanwatch.engines.huggingface.replaced_method import Method, ReplacedMethod
from nanwatch.failfast import NanLogitsError
from nanwatch.probe import NanProbe

from .containment import Containment
from .counting_model import ROOM, CountingModel
from .requeue import without_those_that_left
from .room import Room, with_one_more_row
from .rows import read_rows, row_count
from .told import told_to_all


class WatchedProcessor:
    """Watches one ContinuousBatchProcessor, which has not run a step yet, until it is put back.

    Args:
        processor: the engine's; it holds this, and nobody else has to.
        probe: what counts.
        guard: what logs.
        tripped: is told what fail-fast raises: the engine swallows it where it ends its thread.
    """

    def __init__(
        self, processor: Any, probe: NanProbe, guard: Guard, tripped: Callable[[NanLogitsError], None]
    ) -> None:
        self._probe, self._guard, self._tripped = probe, guard, tripped
        self._scheduler = processor.scheduler
        self._runner, self._ios = processor.model_runner, processor.inputs_and_outputs
        self._is_async = bool(processor.use_async_batching)
        self._status = processor.background_thread_status
        self._rooms: dict[Any, Room] = {}  # of each IO that steps are launched from
        self._launched: dict[Any, None] = {}  # IOs whose step was not read yet, the oldest first
        self._model: Any = None  # the one that `_counting` calls: it stays the same from step to step
        self._counting: CountingModel | None = None
        self._cancelled: list[str] = []  # their last step may be in flight
        self._containment = Containment(processor, probe) if probe.aborts else None
        self._for_sampling = probe.aborts and bool(processor.do_sample)
        self._is_blind = False
        self._undo = ExitStack()
        try:
            self._attach(processor)
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Let the engine run on as if nobody looked; the buffers keep their row."""
        self._undo.close()

    def _attach(self, processor: Any) -> None:
        pairs = self._ios.io_pairs if self._is_async else ()
        ends = [(pair.host_io, pair.device_io) for pair in pairs] or [(self._ios, self._ios)]
        grown = [(io, with_one_more_row(io.output_ids)) for end in ends for io in dict.fromkeys(end)]
        for io, buffer in grown:  # all or none: the engine copies one into the other
            io.output_ids = buffer
        for host, device in ends:
            self._rooms[host] = Room(device.output_ids[-1])
            self._replace(host, "prepare_batch_update", partial(self._around_update, host))
        self._replace(self._runner, "compute_batch", self._around_compute)
        self._replace(self._runner, "run_one_warmup", self._around_warmup)
        self._replace(processor, "fail_all_requests", self._around_failure)
        self._replace(processor.scheduler, "clear_cancelled_requests", self._around_cancelled)
        if self._containment is not None:
            self._replace(processor.cache, "free_blocks", partial(self._around_free, self._containment))

    def _replace(self, owner: Any, name: str, around: Any) -> None:
        self._undo.callback(ReplacedMethod(owner, name, around).put_back)

    def _launching_io(self) -> Any:
        """Return the host's side of what the next step is launched from."""
        return self._ios.io_pairs[self._ios.current_pair].host_io if self._is_async else self._ios

    def _around_compute(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            counted = self._counted(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is, the engine is not to notice
            self._guard.failed(error)
            counted = None
        return original(*args, **kwargs) if counted is None else original(*counted)

    def _counted(self, model: Any, batch_data: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        io = self._launching_io() if self._is_async else self._ios
        room = self._rooms[io]
        room.empty(len(io.requests_in_batch))
        self._launched[io] = None
        if self._model is not model or self._counting is None:
            self._model = model
            self._counting = CountingModel(model, self._go_blind, for_sampling=self._for_sampling)
        batch_data[ROOM] = room  # the last thing: only a CountingModel knows what to do with it
        return self._counting, batch_data

    def _go_blind(self, error: Exception) -> None:
        """Stay blind from here on: a graph that is captured without its count stays without."""
        self._guard.failed(error)
        self._is_blind = True

    def _around_update(self, io: Any, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            self._observe(io)
        except NanLogitsError:
            raise
        except Exception as error:  # noqa: BLE001  as in _around_compute
            self._guard.failed(error)
        batch = original(*args, **kwargs)
        return batch if self._containment is None else without_those_that_left(self._scheduler, *batch)

    def _observe(self, io: Any) -> None:
        if io not in self._launched:
            return
        del self._launched[io]
        containment, is_clean = self._containment, self._rooms[io].is_clean
        try:
            if containment is None or (is_clean and not containment.void):
                self._observe_rows(io, None if is_clean else io.output_ids[-1])
            else:
                self._contain(containment, io, io.output_ids[-1])
        finally:
            if self._cancelled:
                self._finish_cancelled()

    def _observe_rows(self, io: Any, counts: Tensor | None) -> None:
        """Observe the step of this IO; `counts` of its NaNs, [R] or longer, None where there are none."""
        rows = read_rows(io.requests_in_batch)
        if self._is_blind:
            self._probe.drop(DROP_REASON)
        elif not rows.rows:
            return
        elif counts is None:
            self._probe.observe_clean(rows.rows, rows.ids, row_owner=rows.row_owner, phase=rows.phase)
        else:
            try:
                self._probe.observe_counts(
                    counts[: rows.rows], rows.ids, row_owner=rows.row_owner, phase=rows.phase
                )
            except NanLogitsError as error:
                self._trip(error)
                raise

    def _contain(self, containment: Containment, io: Any, counts: Tensor) -> None:
        if self._is_blind:
            self._probe.drop(DROP_REASON)
            return
        if self._rooms[io].is_clean:
            containment.pass_on(io)
            return
        rows = row_count(io.requests_in_batch)
        on_host = counts[:rows] if counts.is_cpu else self._rooms[io].landed(rows)
        try:
            containment.look(io, on_host, self._launched)
        except NanLogitsError as error:
            self._trip(error)
            raise

    def _trip(self, error: NanLogitsError) -> None:
        """Refuse new requests from now on: the engine would do so only after it has failed those it has.

        A client of `transformers serve` that came in between would wait for ever.
        """
        self._tripped(error)
        self._guard.run(self._status.record_fatal_error, told_to_all(error))

    def _around_free(
        self, containment: Containment, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A cache that is full moves a running request out; it is told by not being kept for its prefix."""
        if len(args) > 1 or kwargs:
            self._guard.run(containment.wipe_unseen, args[:1])
        return original(*args, **kwargs)

    def _around_cancelled(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._containment is not None and getattr(self._scheduler, "_requests_to_cancel", True):
            self._guard.run(self._wipe_cancelled, self._containment)
        states = original(*args, **kwargs)
        if states:
            self._guard.run(self._note_cancelled, states)
        return states

    def _wipe_cancelled(self, containment: Containment) -> None:
        containment.wipe_unseen(list(self._scheduler._requests_to_cancel))  # noqa: SLF001  about to go

    def _note_cancelled(self, states: Iterable[Any]) -> None:
        """Finish what was cancelled; but a request whose step is in flight lives until that was read."""
        self._cancelled.extend(state.request_id for state in states)
        if not self._launched:
            self._finish_cancelled()

    def _finish_cancelled(self) -> None:
        if self._cancelled:
            self._probe.finish(self._cancelled)
            self._cancelled = []

    def _around_warmup(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seconds = original(*args, **kwargs)
        self._guard.run(self._observe_warmup)
        return seconds

    def _observe_warmup(self) -> None:
        """Look at what the engine has waited for, and will never read."""
        io = self._launching_io()
        if io in self._launched:
            del self._launched[io]
            rows = row_count(io.requests_in_batch)
            self._probe.observe_counts(self._ios.output_ids[-1, :rows], [], phase="warmup")

    def _around_failure(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._guard.run(self._salvage)
        return original(*args, **kwargs)

    def _salvage(self) -> None:
        """Look at what landed of the steps that nobody will read; the engine is failing already."""
        for io in list(self._launched):
            landed = self._rooms[io].landed(row_count(io.requests_in_batch))
            if landed is not None:
                with suppress(NanLogitsError):
                    self._observe_rows(io, landed)
        self._launched.clear()
        self._finish_cancelled()
