"""Whether a journal that the demo was given will do: nobody else counts into it, and it can be written."""

import math
from dataclasses import replace
from pathlib import Path

from nanwatch import identity
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.source import Source
from nanwatch.run.trip import refused_by_journal
from nanwatch.settings import Settings


class UnfitJournalError(RuntimeError):
    """The journal that the demo was given will not do."""


def refuse_unfit(settings: Settings, journal: Path) -> None:
    """Refuse a journal that cannot be written, or is in use; what engines that ended left does no harm.

    Raises:
        UnfitJournalError: one line with the reason, and the knob.
    """
    others = other_engines(journal)
    if others:
        raise UnfitJournalError(
            f"NANWATCH_JOURNAL={str(journal)!r} is the journal of a running engine ({'; '.join(others)}), "
            "which the demo's NaN would be counted with: unset it for a fresh folder, or name another one"
        )
    why = refused_by_journal(replace(settings, journal=journal))
    if why:
        raise UnfitJournalError(f"the journal cannot be written: {why}; without it there is a fresh folder")


def other_engines(journal: Path, since: float = math.inf) -> list[str]:
    """Return each engine but this process's that writes to the journal, in words.

    Args:
        journal: the folder.
        since: those that ended are named too if they wrote after this time.monotonic().
    """
    reader = JournalReader(journal)
    reader.poll()
    others = [
        _named(source)
        for source in reader.sources
        if (source.held or source.grew_at >= since) and not _is_ours(source)
    ]
    reader.close()
    return others


def _is_ours(source: Source) -> bool:
    # A second source of one life is called "...#2".
    return source.start is not None and source.start.life.partition("#")[0] == identity.life()


def _named(source: Source) -> str:
    labels = source.labels
    pid = f", pid {source.start.pid}" if source.start else ""
    return f"{labels.model_name!r} engine {labels.engine} ({labels.runtime}), host {labels.host}{pid}"
