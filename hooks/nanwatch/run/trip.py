"""What the journal says of the engines that one `nanwatch run` started."""

import tempfile

from nanwatch.journal.folder import Folder, default_folder
from nanwatch.journal.reader import JournalReader
from nanwatch.settings import Settings

MOST_IDS = 20
ROOM_BYTES = 65_536  # for the first lines of a source, and some corrupted requests


def refused_by_journal(settings: Settings) -> str:
    """Return why the journal would not take a line of a program started here, "" if it would."""
    folder = Folder(settings.journal or default_folder(writing=True), settings.journal_group)
    try:
        folder.prepare()
        with tempfile.TemporaryFile(dir=folder.path) as trial:
            trial.write(bytes(ROOM_BYTES))
    except OSError as error:
        # A FolderError says it all by itself.
        return f"{error.strerror} (NANWATCH_JOURNAL names {folder.path})" if error.strerror else str(error)
    return ""


class TripWatch:
    """Follows the sources whose start line carries this run's id."""

    def __init__(self, settings: Settings, run_id: str) -> None:
        self._reader = JournalReader(settings.journal or default_folder(writing=True))
        self._run_id = run_id
        self._known: dict[str, int] = {}  # corrupted requests seen so far, by file id
        self.tripped = False
        self.corrupted: dict[str, None] = {}

    def look(self) -> None:
        """Read what is new."""
        self._reader.poll()
        for source in self._reader.sources:
            if source.start is None or source.start.run != self._run_id:
                continue
            before = source.start.totals.fail_fast_trips
            self.tripped |= source.totals.fail_fast_trips > before
            if source.totals.corrupted_requests == self._known.get(source.file):
                continue
            self._known[source.file] = source.totals.corrupted_requests
            self.corrupted.update(
                (request.shown_id, None)
                for request in source.corrupted.values()
                if source.is_of_current_life(request)
            )

    def summary(self) -> str:
        """Return the one line that is left at the end."""
        ids = ", ".join(repr(request_id) for request_id in list(self.corrupted)[:MOST_IDS])
        more = f" and {len(self.corrupted) - MOST_IDS} more" if len(self.corrupted) > MOST_IDS else ""
        what = "stopped at NaN" if self.tripped else "NaN"
        whose = f"{ids}{more}" if ids else "requests that nobody named"
        return f"nanwatch run: {what} in the logits of {whose} (journal {self._reader.folder})"
