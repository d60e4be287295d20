"""What probes have written to a journal, in the words of a test's expectations."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanwatch import NanProbe
from nanwatch.journal.line import CorruptedRequest
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.totals import Totals


class Report(NamedTuple):
    """What all sources of a journal have counted."""

    totals: Totals
    corrupted: dict[str, CorruptedRequest]  # by request id


@dataclass(frozen=True)
class Written:
    """Reads the journal in `folder` anew each time it is asked."""

    folder: Path

    def report(self, probe: NanProbe) -> Report:
        """Wait until all that the probe was shown is written, and read it."""
        totals, requests = self._read(probe)
        by_id = {request.request_id: request for request in requests}
        assert len(by_id) == len(requests), "an id was used again: ask for the totals"
        return Report(totals, by_id)

    def totals(self, probe: NanProbe) -> Totals:
        """Wait, and return the totals."""
        return self._read(probe)[0]

    def corrupted(self, probe: NanProbe) -> dict[str, CorruptedRequest]:
        """Wait, and return the corrupted requests by their ids."""
        return self.report(probe).corrupted

    def _read(self, probe: NanProbe) -> tuple[Totals, list[CorruptedRequest]]:
        assert probe.flush()
        reader = JournalReader(self.folder)
        reader.poll()
        reader.close()
        totals = Totals()
        for source in reader.sources:
            totals = totals.plus(source.totals)
        return totals, [request for source in reader.sources for request in source.corrupted.values()]
