"""Everything that one life says in its file, in memory: the file can be made anew from it at any time.

    base     totals that earlier lives left in the file that is gone on with
    own      totals of this life; a line holds base + own
    changed  corrupted requests that were put since the last line, not encoded yet
    kept     encoded entries of corrupted requests; joined, and never encoded anew
    unsaved  keys of kept entries that no whole line holds yet
All of it is bounded, also while nothing can be written: kept prunes, and what it lets go before a
line held it is counted (dropped_entries). Totals are never let go.
"""

import secrets
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from .clock import boot_ns
from .fold import Fold
from .kept import NEWEST, Kept, Key
from .line import (
    CorruptedRequest,
    FileLine,
    Labels,
    ReportLine,
    StartLine,
    encode_corrupted,
    encode_file,
    encode_report,
    encode_start,
    report_pieces,
)
from .totals import Totals


class Memory:
    """What one life of a source counted, and what it found in the file that it goes on with."""

    def __init__(self, labels: Labels, start: StartLine) -> None:
        self._file = FileLine(secrets.token_hex(16), labels)
        self._start = start
        self._base, self._own = Totals(), Totals()
        self._last_step_seconds = 0.0
        self._changed: dict[Key, CorruptedRequest] = {}
        self._kept: Kept[bytes] = Kept()
        self._unsaved: dict[Key, None] = {}
        self._dropped_entries = 0
        self.failed_renewals = 0  # of this life; counted with its journal errors

    @property
    def file_id(self) -> str:
        """The id of the file, for all lives."""
        return self._file.file

    @property
    def unsaved(self) -> int:
        """Corrupted requests, new or changed, that no line holds yet."""
        return len(self._changed.keys() | self._unsaved.keys())

    def put(self, request: CorruptedRequest) -> None:
        """Note a corrupted request, new or changed; it is encoded once a line, however often it is put."""
        self._changed[request.key] = request
        if len(self._changed) > NEWEST:
            self._encode_changed()

    def count(self, own: Totals, last_step_seconds: float) -> None:
        """Note the totals of this life so far."""
        self._own, self._last_step_seconds = own.copy(), last_step_seconds

    def go_on_from(self, fold: Fold) -> None:
        """Take over what earlier lives left; their requests count as ended."""
        if fold.file is None:
            return
        self._file, self._base = fold.file, fold.totals
        self._start = replace(self._start, totals=fold.totals)
        self._kept.put_before((key, encode_corrupted(request)) for key, request in fold.corrupted.items())

    def start_line(self) -> bytes:
        """How this life begins, in a file that earlier lives wrote."""
        return encode_start(self._start)

    def news(self) -> bytes:
        """Return a report of the totals and of the requests that no line holds yet."""
        self._encode_changed()
        return encode_report(self._totals_now(), (self._kept[key] for key in self._unsaved))

    def snapshot(self, *, locked: bool) -> Iterable[bytes]:
        """Return everything as the content of a new file, in pieces: first line, start line, one report."""
        self._encode_changed()
        self._kept.prune(self._start.life)
        self._forget_pruned()
        first = encode_file(replace(self._file, locked=locked))
        return chain((first, self.start_line()), report_pieces(self._totals_now(), self._kept.values()))

    def note_written(self) -> None:
        """All that was encoded is in the file now."""
        self._unsaved.clear()

    def _totals_now(self) -> ReportLine:
        totals = self._base.plus(self._own)
        totals.dropped_entries += self._dropped_entries
        totals.journal_errors += self.failed_renewals
        return ReportLine(boot_ns(), time.time(), totals, self._last_step_seconds)

    def _encode_changed(self) -> None:
        for key, request in self._changed.items():
            self._kept.put(key, encode_corrupted(request), finished=request.finished)
            self._unsaved[key] = None
        self._changed.clear()
        self._forget_pruned()

    def _forget_pruned(self) -> None:
        before = len(self._unsaved)
        self._unsaved = {key: None for key in self._unsaved if key in self._kept}
        self._dropped_entries += before - len(self._unsaved)
