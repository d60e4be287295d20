"""A source for an engine that nobody looks at, so that whoever operates it sees it.

Its file says why in the start line, counts nothing, and is held for as long as the process lives:
nanwatch_hook_active is 0 all that time, and nanwatch_source_info names the versions. No thread and
no torch: all that is ever written is the first lines.
"""

from dataclasses import replace

from . import identity
from .journal.folder import Folder, default_folder
from .journal.line import Labels
from .journal.totals import Totals
from .journal.writer import JournalWriter
from .settings import Settings

_sources: dict[str, JournalWriter] = {}  # by engine; held, as each holds the lock of its file


def show(engine: str, version: str, reason: str) -> None:
    """Begin the source of an engine that is not looked at; a second time does nothing.

    Raises:
        OSError: the journal cannot be written.
        SettingsError: a variable of nanwatch's is not understood.
    """
    if engine in _sources:
        return
    settings = Settings.from_environment()
    labels = Labels(
        model_name=settings.model_name or "unknown",
        engine="0",
        runtime=engine,
        replica=settings.replica or "0",
        host=identity.host(),
        rank=identity.rank(),
        uuid="",
    )
    start = identity.start_line(
        labels, None, device=None, counting=True, fail_fast=settings.fail_fast, run=settings.run_id
    )
    said = replace(start, blind=reason, versions={**start.versions, engine: version})
    folder = Folder(settings.journal or default_folder(writing=True), settings.journal_group)
    writer = _sources[engine] = JournalWriter(folder, labels, said)
    writer.commit(Totals())
