"""NANWATCH_ON_NAN=abort: the request that made NaN ends, the others that caught it are made anew.

What happens at a hit, in the engine's thread, between the read of its tokens and their delivery:
    kv_cache.py      every value of the cache that is not finite becomes 0, on the stream of the model: it is
                     done before anybody reads the cache again, so no block has to be held back
    judgement.py     who made it, from where it was
    the culprit      ends FAILED, with an error that names NaN; its bad token goes to nobody
    the spared       are put back at the head of the queue, as the engine does when its memory is short: the
                     prompt and the tokens so far are read again, from the prefix cache as far as that is
                     clean. What was delivered stays, the next token comes a little later.
    the next step    in asynchronous batching one was launched before this one was read, with the NaN still
                     in the cache: all of its requests are put back and nothing of it is used, so its own
                     NaN says nothing that is not known
A token that is thrown away is nobody's, so the row it stood for is padding: the spared are not counted as
corrupted. A culprit that has no row, being in the middle of its prompt, is counted with one all the same,
and with the bad values of its KV.

Where any of this fails the engine is stopped: asked to send nobody garbage, it cannot go on.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from nanwatch.attribution import PADDING
from nanwatch.failfast import NanLogitsError
from nanwatch.findings import is_clean
from nanwatch.probe import NanProbe
from nanwatch.readback import bytes_of

from .judgement import Evidence, Verdict, evidence_of, judge
from .kv_cache import forget_content, is_reserved, wipe, zero_bad_values
from .requeue import end, keep_running, put_back, was_warned
from .rows import BatchRows, read_one_by_one, read_rows

NOTE = " (nanwatch ended this request, and no token that was made of NaN was sent; it may be sent again)"

logger = logging.getLogger("nanwatch")


class Containment:
    """Spares the requests of one batch processor each other's NaN.

    Attributes:
        void: host sides of launched steps of which nothing will be used.
    """

    def __init__(self, processor: Any, probe: NanProbe) -> None:
        self._processor, self._probe = processor, probe
        self.void: list[Any] = []
        (self._allocator,) = processor.cache.cache_allocators.values()  # refusals.py lets no others through

    def look(self, io: Any, counts: Tensor | None, in_flight: Iterable[Any]) -> None:
        """Look at one step, whose tokens are about to be handed out.

        Args:
            io: the engine's host side of it.
            counts: [R] int32 on the host, how many NaNs each logits row held; None: they did not land.
            in_flight: the host sides of steps that were launched after it.

        Raises:
            NanLogitsError: the step held NaN and could not be contained, or may have held it.
        """
        if counts is None:
            raise NanLogitsError({}, " (a step was read before its counts had landed: the engine stops)")
        if is_clean(bytes_of(counts)):
            self.pass_on(io)
            return
        if io in self.void:
            self.pass_on(io, counts)
            return
        try:
            self.void = list(in_flight)
            self._contain(io.requests_in_batch, counts, self.void)
        except Exception as error:
            rows = read_one_by_one(io.requests_in_batch)
            self._observe(rows, counts)
            found = {rows.ids[owner]: n for owner, n in _owned(rows, counts) if n}
            raise NanLogitsError(found, " (and they could not be contained: the engine stops)") from error

    def pass_on(self, io: Any, counts: Tensor | None = None) -> None:
        """Count a step in which there is nothing to contain; without `counts` [R] no row of it held a NaN."""
        self.void = [one for one in self.void if one is not io]
        self._observe(read_rows(io.requests_in_batch), counts)

    def wipe_unseen(self, leaving: Iterable[str]) -> None:
        """Wipe what was read of prompts that are cancelled, or moved out of the cache, in their middle.

        No row has shown whether it is good.
        """
        scheduler = self._processor.scheduler
        states = [scheduler.active_requests.get(name) for name in leaving]
        blocks = [
            block
            for state in states
            if state is not None and state.status.name == "PREFILLING"
            for block in self._allocator.block_table.get(state.request_id, ())
            if block not in self._allocator.ledger.shared_ref_counts
        ]
        if blocks:
            with self._on_the_models_stream():
                wipe(self._allocator, blocks)

    def _on_the_models_stream(self) -> Any:
        return torch.cuda.stream(self._processor.inputs_and_outputs.compute_stream)  # None does nothing

    def _contain(self, batch: list[Any], counts: Tensor, in_flight: list[Any]) -> None:
        with_nan = [s.state for s, n in zip(_with_row(batch), counts.tolist(), strict=True) if n]
        found = self._clean_cache()
        after = [scheduled for io in in_flight for scheduled in io.requests_in_batch]
        evidence = self._evidence(found, batch, after)
        running = self._processor.scheduler.active_requests
        verdict = judge(
            evidence,
            frozenset(state.request_id for state in with_nan if self._runs(state)),
            warned_before=frozenset(name for name in evidence if was_warned(running[name])),
            somebody_left=not all(map(self._runs, with_nan)),
        )
        spared = verdict.spared | {s.state.request_id for s in after if self._runs(s.state)}
        spared -= verdict.culprits
        values = self._observe_hit(batch, counts, verdict.culprits, spared, evidence)
        self._carry_out(values, verdict, spared, in_flight)
        dirty = sum(not is_reserved(self._allocator, block) for block in found)
        self._probe.count_contained(aborted_requests=len(verdict.culprits), kv_poisoned_blocks=dirty)
        logger.info(
            "nanwatch ended %s, made %d other requests anew and zeroed NaN in %d KV blocks",
            sorted(verdict.culprits) or "no request",
            len(spared),
            dirty,
        )

    def _clean_cache(self) -> dict[int, Tensor]:
        """Clean the cache, behind all that was launched; no block that held NaN is found by its prefix."""
        with self._on_the_models_stream():
            found = zero_bad_values(self._allocator)
        for block in found:
            forget_content(self._allocator, block)
        return found

    def _evidence(self, found: dict[int, Tensor], batch: list[Any], after: list[Any]) -> dict[str, Evidence]:
        """Look at every running request, also those that no step holds, as they were behind this step."""
        new, later = _lengths(batch), _lengths(after)
        seen = {}
        for name, state in self._processor.scheduler.active_requests.items():
            tokens = state.position_offset - later.get(name, 0)
            blocks = self._allocator.block_table.get(name, ())
            seen[name] = evidence_of(blocks, found, tokens, tokens - new.get(name, 0))
        return {name: evidence for name, evidence in seen.items() if evidence is not None}

    def _carry_out(
        self, culprits: Mapping[str, int], verdict: Verdict, spared: Collection[str], in_flight: list[Any]
    ) -> None:
        active = self._processor.scheduler.active_requests
        for name, values in culprits.items():
            end(self._processor, active[name], NanLogitsError({name: values}, NOTE))
        for name in [name for name in reversed(active) if name in spared]:
            put_back(self._processor, active[name], warned=name in verdict.warned)
        for io in in_flight:
            keep_running(io, active)

    def _observe_hit(
        self,
        batch: list[Any],
        counts: Tensor,
        culprits: Collection[str],
        spared: Collection[str],
        evidence: dict[str, Evidence],
    ) -> dict[str, int]:
        """Count the step: culprits by their rows, or by their KV; rows of the spared are nobody's.

        Returns the culprits, with how many bad values each had.
        """
        rows = read_one_by_one(batch, thrown_away=spared)
        found = dict.fromkeys(culprits, 0)
        for owner, values in _owned(rows, counts):
            if rows.ids[owner] in culprits:
                found[rows.ids[owner]] += values
        for name in [name for name, values in found.items() if not values]:
            found[name] = evidence[name].values
            rows, counts = _with_values(rows, counts, name, evidence[name].values)
        self._observe(rows, counts)
        return found

    def _observe(self, rows: BatchRows, counts: Tensor | None) -> None:
        """Count the step; None: no row of it held a NaN."""
        if counts is None and rows.rows:
            self._probe.observe_clean(rows.rows, rows.ids, row_owner=rows.row_owner, phase=rows.phase)
        elif counts is not None and rows.rows:
            self._probe.observe_counts(counts, rows.ids, row_owner=rows.row_owner, phase=rows.phase)

    def _runs(self, state: Any) -> bool:
        return self._processor.scheduler.active_requests.get(state.request_id) is state


def _owned(rows: BatchRows, counts: Tensor) -> list[tuple[int, int]]:
    """Return (owner, NaNs) of each row that is somebody's."""
    owners = rows.row_owner or []
    return [(o, n) for o, n in zip(owners, counts.tolist(), strict=True) if o != PADDING]


def _with_values(rows: BatchRows, counts: Tensor, name: str, values: int) -> tuple[BatchRows, Tensor]:
    """Charge a request for what its KV held: its row is clean, or it has none and gets one for this."""
    owners, phases = list(rows.row_owner or ()), list(rows.phase)
    if name in rows.ids:
        counts = counts.clone()
        counts[owners.index(rows.ids.index(name))] = values
        return rows, counts
    ids, owners, phases = [*rows.ids, name], [*owners, len(rows.ids)], [*phases, "prefill"]
    return BatchRows(rows.rows + 1, ids, owners, phases), torch.cat([counts, counts.new_tensor([values])])


def _lengths(batch: Iterable[Any]) -> dict[str, int]:
    """Return how many tokens of each request a step reads."""
    return {scheduled.state.request_id: scheduled.query_length for scheduled in batch}


def _with_row(batch: Iterable[Any]) -> list[Any]:
    return [scheduled for scheduled in batch if scheduled.has_new_token]
