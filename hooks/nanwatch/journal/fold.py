"""One file, folded line by line into what it says now.

Used by both halves: by the writer to go on from a dead file, by the reader to follow a live one.
A line that does not parse is skipped; a first line that does not parse makes the file foreign.
"""

from dataclasses import dataclass, field

from .decoding import decode
from .kept import Kept
from .line import CorruptedRequest, FileLine, LineError, ReportLine, StartLine, VersionError
from .totals import Totals


class ForeignFileError(LineError):
    """The first line is not one of ours, so nothing in this file may be counted or changed."""


@dataclass(slots=True)
class Fold:
    """What the whole lines seen so far add up to."""

    file: FileLine | None = None  # None until a whole first line was seen
    start: StartLine | None = None  # the current life
    last: ReportLine | StartLine | None = None
    totals: Totals = field(default_factory=Totals)
    corrupted: Kept[CorruptedRequest] = field(default_factory=Kept)
    skipped_lines: int = 0

    def take(self, raw: bytes) -> FileLine | StartLine | ReportLine | None:
        """Fold one whole line; returns what it said, or None if it was skipped.

        Raises:
            ForeignFileError: the first line is not one of ours.
            VersionError: the first line is of a major version that this nanwatch does not read.
        """
        if self.file is None:
            self.file = self._first_line(raw)
            return self.file
        try:
            line = decode(raw)
        except LineError:
            self.skipped_lines += 1
            return None
        if isinstance(line, StartLine):
            self.start = self.last = line
            self.totals.raise_to(line.totals)
        elif isinstance(line, ReportLine):
            self._take_report(line)
        return line

    def _first_line(self, raw: bytes) -> FileLine:
        try:
            line = decode(raw)
        except VersionError:
            raise
        except LineError as error:
            msg = f"the first line is not nanwatch's: {error}"
            raise ForeignFileError(msg) from error
        if not isinstance(line, FileLine):
            msg = f"the first line is not of kind 'file': {raw[:80]!r}"
            raise ForeignFileError(msg)
        return line

    def _take_report(self, line: ReportLine) -> None:
        self.last = line
        self.totals.raise_to(line.totals)
        for request in line.corrupted:
            self.corrupted.put(request.key, request, finished=request.finished)
