"""What a journal's folder says, in the words that the tests ask with."""

from dataclasses import dataclass
from pathlib import Path

from nanwatch.journal.line import CorruptedRequest
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.totals import Totals


@dataclass(frozen=True)
class Seen:
    """The sum over all sources of one folder."""

    totals: Totals
    requests: tuple[CorruptedRequest, ...]
    sources: int
    counted: int  # corrupted requests of counting sources only: what the metric shows

    @property
    def corrupted(self) -> int:
        """C of the scenarios: corrupted requests over all sources."""
        return self.totals.corrupted_requests

    @property
    def ids(self) -> list[str]:
        """Ids of the corrupted requests, in the order of their first NaN."""
        return [request.request_id for request in self.requests]

    @property
    def lives(self) -> set[str]:
        """Lives that saw a corrupted request; short ones follow each other in one file."""
        return {request.life for request in self.requests}

    def request(self, request_id: str) -> CorruptedRequest:
        """Return the one corrupted request of this id."""
        (found,) = (request for request in self.requests if request.request_id == request_id)
        return found


def read(folder: Path, *, beside_problems: bool = False) -> Seen:
    """Read a folder once, as a sidecar would that just started."""
    reader = JournalReader(folder)
    reader.poll()
    assert beside_problems or reader.problems == ()
    totals = Totals()
    for source in reader.sources:
        totals = totals.plus(source.totals)
    requests = [request for source in reader.sources for request in source.corrupted.values()]
    reader.close()
    counted = sum(source.corrupted_requests for source in reader.sources)
    return Seen(totals, tuple(requests), len(reader.sources), counted)
