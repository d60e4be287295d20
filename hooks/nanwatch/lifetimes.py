"""Which requests live, which are corrupted, and how often an id was used. Pure and bounded.

A request lives from the first step that names it to `finish`. It is corrupted at its first NaN,
once, whatever comes after. `n` says how often this source had finished the id before, so that an
id that is used again is another request: key = (life, request id, n).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice, repeat
from typing import NamedTuple

from .journal.line import CorruptedRequest

MOST_LIVE = 65_536
MOST_FINISHED = 65_536


class Sighting(NamedTuple):
    """Where and when a NaN was seen."""

    step: int  # the source's own step number, from 1
    wall_seconds: float
    boot_ns: int


class Lifetimes:
    """The live requests of one life of one source.

    At most `most_live` ids; past that the longest unseen healthy ones are forgotten, corrupted
    ones never. Of finished ids the last `most_finished` are remembered; for one that was
    forgotten, `n` starts at the highest forgotten count: never a key twice.
    `client_id` turns an engine's id into the client's; it is asked for corrupted requests only.
    """

    def __init__(
        self,
        life: str,
        most_live: int = MOST_LIVE,
        most_finished: int = MOST_FINISHED,
        client_id: Callable[[str], str] | None = None,
    ) -> None:
        self._life, self._most_live, self._most_finished = life, most_live, most_finished
        self._client_id = client_id
        self._live: dict[str, int] = {}  # id -> the step it was last seen in
        self._corrupted: dict[str, CorruptedRequest] = {}  # the live ones
        self._finished: dict[str, int] = {}  # id -> how often; the last finished at the end
        self._forgotten_n = 0
        self._same_ids: Sequence[str] | None = None  # ids of the last step, applied to _live lazily
        self._same_step = 0

    def see(self, request_ids: Sequence[str], step: int) -> int:
        """Note the requests of a step; returns how many were never seen before.

        The same list object as in the last step costs nothing: decoding names the same requests
        thousands of times.
        """
        if request_ids is self._same_ids:
            self._same_step = step
            return 0
        self._apply_same()
        before = len(self._live)
        self._live.update(zip(request_ids, repeat(step)))
        new = len(self._live) - before
        self._same_ids, self._same_step = request_ids, step
        if len(self._live) > self._most_live:
            self._forget_unseen()
        return new

    def charge(self, request_id: str, seen: Sighting, phase: str, rows: int, values: int) -> CorruptedRequest:
        """Charge NaN rows and values to a live request; returns it as it is now."""
        known = self._corrupted.get(request_id)
        if known is None:
            charged = CorruptedRequest(
                life=self._life,
                request_id=request_id,
                n=self._finished.get(request_id, self._forgotten_n),
                first_step=seen.step,
                first_seen_seconds=seen.wall_seconds,
                first_seen_boot_ns=seen.boot_ns,
                phase=phase,
                rows=rows,
                values=values,
                client_id=self._client_id(request_id) if self._client_id else "",
            )
        else:
            charged = replace(known, rows=known.rows + rows, values=known.values + values)
        self._corrupted[request_id] = charged
        return charged

    def is_corrupted(self, request_id: str) -> bool:
        """Whether this live request had a NaN before."""
        return request_id in self._corrupted

    def finish(self, request_ids: Iterable[str]) -> list[CorruptedRequest]:
        """End requests; returns the corrupted ones among them. Ids that do not live are let go."""
        self._apply_same()
        ended = []
        for request_id in request_ids:
            if self._live.pop(request_id, None) is None:
                continue
            n = self._finished.pop(request_id, self._forgotten_n)
            self._finished[request_id] = n + 1
            corrupted = self._corrupted.pop(request_id, None)
            if corrupted is not None:
                ended.append(replace(corrupted, finished=True))
        self._forget_finished()
        return ended

    def _apply_same(self) -> None:
        if self._same_ids is not None:
            self._live.update(zip(self._same_ids, repeat(self._same_step)))
            self._same_ids = None

    def _forget_unseen(self) -> None:
        healthy = sorted((step, name) for name, step in self._live.items() if name not in self._corrupted)
        for _, name in islice(healthy, len(self._live) - self._most_live * 9 // 10):
            del self._live[name]

    def _forget_finished(self) -> None:
        for name in list(islice(self._finished, max(0, len(self._finished) - self._most_finished))):
            self._forgotten_n = max(self._forgotten_n, self._finished.pop(name))
