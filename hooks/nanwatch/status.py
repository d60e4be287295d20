"""`nanwatch status`: what the journal's folder says, without a sidecar."""

import argparse
import time
from collections.abc import Iterable

from .journal.folder import default_folder
from .journal.reader import JournalReader
from .journal.source import Source
from .settings import Settings, journal_folder

NO_SOURCE = 1
NEWEST = 5  # corrupted requests shown of each source


def main(argv: list[str]) -> int:
    """Print path, sources and totals; 0, or 1 where the folder holds no source."""
    arguments = _parser().parse_args(argv)
    settings = Settings.from_environment()
    folder = arguments.journal or settings.journal or default_folder(writing=False)
    reader = JournalReader(folder.absolute())
    reader.poll()
    print("\n".join(_report(reader)))
    return 0 if reader.sources else NO_SOURCE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nanwatch status", description=__doc__)
    parser.add_argument(
        "--journal",
        type=journal_folder,
        metavar="FOLDER",
        help="the folder to look at (default: NANWATCH_JOURNAL)",
    )
    return parser


def _report(reader: JournalReader) -> Iterable[str]:
    yield f"journal {reader.folder}"
    yield from (f"  problem: {problem}" for problem in reader.problems)
    if not reader.sources:
        yield "  no source has written here yet"
    for source in reader.sources:
        yield from _lines_of(source)
    if drills := sum(drill.corrupted_requests for drill in reader.drills):
        yield f"  drills, which never happened: {drills}"
    corrupted = sum(source.corrupted_requests for source in reader.sources)
    yield f"corrupted requests {corrupted} of {sum(source.requests for source in reader.sources)}"


def _lines_of(source: Source) -> Iterable[str]:
    labels, totals = source.labels, source.totals
    where = f"host {_plain(labels.host)} rank {_plain(labels.rank)} {_plain(labels.uuid)}".rstrip()
    pid = f", pid {source.start.pid}" if source.start else ""
    life = "active" if source.active else "blind " if source.blind and source.held else "ended "
    yield (
        f"  {life}  {_plain(labels.model_name)} engine {_plain(labels.engine)} "
        f"({_plain(labels.runtime)}) replica {_plain(labels.replica)}, {where}{pid}"
    )
    yield (
        f"          steps {totals.steps}  rows {totals.rows}  requests {totals.requests}  "
        f"corrupted {totals.corrupted_requests}  NaN rows {totals.nan_rows}  "
        f"unattributed {totals.unattributed_nan_rows}  dropped {sum(totals.dropped_steps.values())}"
    )
    if source.blind:
        yield f"          {_plain(source.blind)}"
    listed = list(source.corrupted.values())
    if len(listed) > NEWEST:
        yield f"          the newest {NEWEST} of {len(listed)} that are listed:"
    for request in listed[-NEWEST:]:
        at = time.strftime("%H:%M:%S", time.localtime(request.first_seen_seconds))
        yield (
            f"          {at}  {request.shown_id!r}  step {request.first_step}  {request.phase}  "
            f"{request.values} NaN in {request.rows} rows"
        )


def _plain(text: str) -> str:
    """Return a label that a terminal can show; control characters and half surrogates are escaped."""
    return text if text.isprintable() else repr(text)
