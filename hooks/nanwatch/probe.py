"""The probe: what an engine calls in each step, on its own thread.

    R = logits rows of a step, Q = requests in it, V = vocabulary
`observe` counts on the engine's device, hands the counts over and returns; everything else
happens on the threads of pipeline.py.
"""

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Queue
from typing import Any, Self

import torch
from torch import Tensor

from . import identity, lifecycle
from .arguments import Layouts, Phase, Rows, check_positions, on_device
from .attribution import Layout, check_texts
from .counting import check_logits
from .inspection import RowCounts
from .journal.folder import Folder, default_folder
from .journal.line import Labels
from .journal.totals import DROP_REASONS, contained_cells
from .journal.writer import JournalWriter
from .ledger import Ledger
from .lifetimes import Lifetimes
from .looking import CAPTURE, Sight
from .observation import Observation, Step
from .pipeline import Pipeline
from .settings import OnNan
from .stop import raise_if_corrupted, settings_of_engine

CLOSE_SECONDS = 2.0

_NOT_A_STEP = Observation(None, None)


class NanProbe:
    """Counts the NaNs of one engine process and says which requests they belong to.

    Args:
        model_name: label; NANWATCH_MODEL_NAME goes before it, "unknown" where neither is given.
        runtime: label, what runs the model: "torch", "transformers", "vllm", ...
        engine: label, the engine's index.
        replica: label; NANWATCH_REPLICA goes before it, "0" where neither is given.
        life: one string on all ranks of one engine start; by default torchrun's run, or this process.
        queue: gets the per-request dict of every step, {"a": 0, "b": 5}; a full one is counted.
        device: where the model runs; by default the current GPU, if one is in use. A GPU named here gets
            its slots and its kernel now, which waits for it; else its first step does that.
        rank: label; by default torchrun's RANK, or "0".
        counting: False on a rank whose tokens do not reach the client: it annotates, and its
            requests are not summed. It never raises either.
        raises_later: under fail-fast the caller of `observe` raises itself, where its engine allows
            it: stop.raise_if_corrupted(observation).
        client_id: turns an engine's request id into what the client calls it, which is shown.
        can_abort: whoever uses the probe ends corrupted requests where `aborts` says so.

    Raises:
        SettingsError: NANWATCH_FAIL_FAST or NANWATCH_ON_NAN is not understood, or asks for an abort that
            cannot be had. Any other variable that is not understood is one line in the log, and the probe
            is inert.
    """

    def __init__(  # noqa: PLR0913, PLR0917  each is a label or a knob of its own, all have defaults
        self,
        model_name: str | None = None,
        runtime: str = "torch",
        engine: str = "0",
        replica: str | None = None,
        life: str | None = None,
        queue: Queue[dict[str, int]] | None = None,
        *,
        device: Any = None,
        rank: str | None = None,
        counting: bool = True,
        raises_later: bool = False,
        client_id: Callable[[str], str] | None = None,
        can_abort: bool = False,
    ) -> None:
        check_texts(
            [text for text in (model_name, runtime, engine, replica, life, rank) if text is not None],
            "labels and lives",
        )
        self._beginning = threading.Lock()
        self._settings = settings_of_engine(can_abort=can_abort)
        self._active = self._settings.enabled is not False
        self._fail_fast = self._settings.fail_fast and counting
        self._raises_later, self._client_id = raises_later, client_id
        self._given_life, self._queue, self._device, self._counting = life, queue, device, counting
        self._labels = Labels(
            model_name=self._settings.model_name or model_name or "unknown",
            engine=engine,
            runtime=runtime,
            replica=self._settings.replica or replica or "0",
            host=identity.host(),
            rank=identity.rank() if rank is None else rank,
            uuid=identity.gpu_uuid(device) if self._active else "",
        )
        self._layouts = Layouts()
        self._sight = Sight(events=self._fail_fast)
        self._pipeline: Pipeline | None = None
        pipeline = self._running()
        if pipeline is not None:
            pipeline.write_first_line()
            lifecycle.remember(self)
            if device is not None:
                self._sight.prepare(torch.device(device))

    def observe(
        self,
        logits: Tensor | None,
        request_ids: Sequence[str] | None,
        *,
        row_ends: Rows | Tensor | None = None,
        row_owner: Rows | Tensor | None = None,
        phase: Phase = "decode",
    ) -> Observation:
        """Count the NaNs in the raw logits [..., V] of one step, before anything changes them.

        Args:
            logits: [..., V], floating; None: not a step.
            request_ids: one id per request, rows past the last are padding (as of a padded graph);
                []: every row is padding; None: nobody knows whose
                the rows are, their NaNs are counted as unattributed.
            row_ends: cumulative ends [Q], where requests have several rows: ends [4, 8] give rows
                0 to 3 to the first and 4 to 7 to the second; rows past the last end are padding.
            row_owner: [R] each row's request index, -1 for padding; a list or an int32 tensor.
                Logits [B, T, V] of more than one position need one of the two, or an id for each row:
                which of the positions stand for a request, only the caller knows.
            phase: prompt, prefill, decode, verify, or one for each request; warmup without ids.

        Returns at once; under fail-fast it waits for the counts and, on a NaN, for the line in
        the journal (at most 1 s).

        Raises:
            ValueError, TypeError: the arguments do not fit together; nothing was recorded.
            NanLogitsError: under fail-fast, a request is corrupted.
        """
        if logits is None or not self._active:
            return _NOT_A_STEP
        check_logits(logits)
        rows = math.prod(logits.shape[:-1])
        layout = self._layouts.layout(rows, request_ids, row_ends, row_owner, phase)
        if logits.dim() > 2:  # noqa: PLR2004  more than rows and vocabulary
            check_positions("logits", logits.shape, layout)
        step = Step.now(layout)
        self._sight.look(step, logits, on_device(row_owner))
        return self._hand_over(step)

    def observe_counts(
        self,
        counts: Tensor | RowCounts | None,
        request_ids: Sequence[str] | None,
        *,
        row_ends: Rows | Tensor | None = None,
        row_owner: Rows | Tensor | None = None,
        phase: Phase = "decode",
    ) -> Observation:
        """Take counts [R] int32 that were made elsewhere, for instance inside a CUDA graph, after its replay.

        What inspect_rows returned is taken too, and shows +inf and fully masked rows as well.

        Raises:
            ValueError, TypeError, NanLogitsError: as `observe`; TypeError too for counts of
                another dtype.
        """
        if counts is None or not self._active:
            return _NOT_A_STEP
        nans = counts.nan if isinstance(counts, RowCounts) else counts
        if nans.dtype is not torch.int32:
            raise TypeError(f"counts are int32, found {nans.dtype}")
        layout = self._layouts.layout(nans.numel(), request_ids, row_ends, row_owner, phase)
        if nans.dim() > 1:
            check_positions("counts", nans.shape, layout)
        step = Step.now(layout)
        self._sight.take(step, counts, on_device(row_owner))
        return self._hand_over(step)

    def observe_clean(
        self,
        rows: int,
        request_ids: Sequence[str] | None,
        *,
        row_owner: Rows | None = None,
        phase: Phase = "decode",
    ) -> None:
        """Take a step of `rows` logits rows of which the caller knows that none holds a NaN.

        Raises:
            ValueError, TypeError: as `observe`.
        """
        if not self._active:
            return
        layout = self._layouts.layout(rows, request_ids, None, row_owner, phase)
        pipeline = self._pipeline or self._running()
        if pipeline is not None:
            pipeline.send_clean(layout)

    @property
    def fail_fast(self) -> bool:
        """Whether a corrupted request raises."""
        return self._active and self._fail_fast

    @property
    def aborts(self) -> bool:
        """Whether corrupted requests are to be ended, and only they: NANWATCH_ON_NAN=abort."""
        return self._settings.on_nan is OnNan.ABORT

    def start(self) -> None:
        """Start the heartbeat before the first step: an idle engine is watched too. No fork may follow."""
        pipeline = self._running()
        if pipeline is not None:
            pipeline.start()

    def finish(self, request_ids: Iterable[str]) -> None:
        """Say that these requests ended; their ids may be used again, for new requests.

        Raises:
            TypeError: an id is not a string, or `request_ids` is itself one string.
        """
        ids = tuple(request_ids)
        check_texts(request_ids if isinstance(request_ids, str) else ids)
        pipeline = self._pipeline  # where nothing runs, as in a forked child at first, no request does
        if pipeline is not None:
            pipeline.send_finish(ids)

    def count_contained(self, **cells: int) -> None:
        """Count what was done about a NaN: `count_contained(aborted_requests=1, kv_poisoned_blocks=3)`.

        Args:
            cells: by how much each of CONTAINMENT in journal/totals.py grew. Blocks that are held back
                from reuse are `quarantined_blocks`, and `released_blocks` when they are given back; those
                that are cleaned at once are neither.

        Raises:
            ValueError: a cell that the journal does not know, or one that would fall.
        """
        grown = contained_cells(cells)
        pipeline = self._running() if grown else None
        if pipeline is not None:
            pipeline.send_contained(grown)

    def drop(self, reason: str) -> None:
        """Count a step that could not be looked at: blindness shows on /metrics.

        Raises:
            ValueError: the reason is none of those that the metrics know.
        """
        if reason not in DROP_REASONS:
            raise ValueError(f"steps are dropped for {', '.join(DROP_REASONS)}, found {reason!r}")
        pipeline = self._running()
        if pipeline is not None:
            pipeline.send_step(Step.now(Layout(0, None), dropped=reason))

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was observed so far is written; False: `timeout` seconds were not enough."""
        pipeline = self._pipeline
        return pipeline is None or pipeline.wait_until_written(pipeline.ticket, timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what has landed and end the threads, within `timeout` seconds; inert from then on."""
        with self._beginning:
            self._active = False
            pipeline, self._pipeline = self._pipeline, None
        lifecycle.forget(self)
        if pipeline is not None:
            pipeline.stop(timeout)

    def forget_parent(self) -> None:
        """In a forked child: threads, locks and files stayed behind; the next step makes new ones."""
        self._beginning = threading.Lock()
        self._pipeline = None
        self._sight.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_over(self, step: Step) -> Observation:
        ids = step.layout.request_ids
        if step.dropped == CAPTURE and ids is not None and not ids:
            # An engine that records its graphs serves nobody yet: nothing is missed, so nothing is counted.
            return Observation(step, None)
        pipeline = self._pipeline or self._running()
        if pipeline is None:
            return _NOT_A_STEP
        pipeline.send_step(step)
        observation = Observation(step, pipeline, fail_fast=self._fail_fast)
        if self._fail_fast and not self._raises_later:
            raise_if_corrupted(observation)
        return observation

    def _running(self) -> Pipeline | None:
        """Return what is behind this probe, made where it is not there yet; None if it is switched off."""
        with self._beginning:
            if self._pipeline is None and self._active:
                self._pipeline = self._begin()
            return self._pipeline

    def _begin(self) -> Pipeline:
        start = identity.start_line(
            self._labels,
            self._given_life,
            device=self._device,
            counting=self._counting,
            fail_fast=self._fail_fast,
            run=self._settings.run_id,
        )
        folder = Folder(self._settings.journal or default_folder(writing=True), self._settings.journal_group)
        writer = JournalWriter(folder, self._labels, start)
        ledger = Ledger(Lifetimes(start.life, client_id=self._client_id))
        lifecycle.close_at_exit()
        return Pipeline(ledger, writer, self._queue, fail_fast=self._fail_fast)
