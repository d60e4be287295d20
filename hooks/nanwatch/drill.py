"""`nanwatch drill`: plants a corrupted request that never happened, so that somebody sees the alert arrive.

It is written to the journal like a real one, by a source of its own whose rank is "drill". The sidecar
shows it as nanwatch_drill_requests_total{drill="1"} and, marked, in /v1/corrupted-requests. It is in no
other number: not in corrupted_requests_total, not in /health/numeric, and it trips no --exit-on-nan.
"""

import argparse
import secrets
import sys
import time
from dataclasses import replace

from . import identity
from .journal.clock import boot_ns
from .journal.folder import Folder, default_folder
from .journal.line import DRILL_RANK, CorruptedRequest, Labels
from .journal.reader import JournalReader
from .journal.totals import Totals
from .journal.writer import JournalWriter
from .settings import Settings, journal_folder, request_count

FAILED = 1
MOST_REQUESTS = 100
_KNOB = "NANWATCH_JOURNAL or --journal names it"


def main(argv: list[str]) -> int:
    """Plant what was asked for and say where it will show; 1 where it could not be written."""
    arguments = _parser().parse_args(argv)
    settings = Settings.from_environment()
    path = arguments.journal or settings.journal or default_folder(writing=True)
    folder = Folder(path.absolute(), settings.journal_group)
    labels, has_engine = _labels(JournalReader(folder.path), settings, arguments)
    try:
        planted = _plant(folder, labels, arguments.requests)
    except OSError as error:
        why = f"{error.strerror} in {folder.path}: {_KNOB}" if error.strerror else str(error)
        print(f"nanwatch drill: nothing was planted: {why}", file=sys.stderr)
        return FAILED
    print(_said(folder, labels, planted))
    if not has_engine:
        print(
            f"no such engine has written to {folder.path}: is it the folder of yours? {_KNOB}",
            file=sys.stderr,
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanwatch drill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--requests",
        type=_count,
        default=1,
        metavar="N",
        help=f"how many to plant, at most {MOST_REQUESTS}; from 5 on the alert is critical (default: 1)",
    )
    parser.add_argument(
        "--journal",
        type=journal_folder,
        metavar="FOLDER",
        help="where to plant it (default: NANWATCH_JOURNAL)",
    )
    parser.add_argument("--model-name", help="as the label says (default: that of a living engine)")
    parser.add_argument("--engine", help="the engine's index (default: that of a living engine)")
    parser.add_argument("--replica", help="as the label says (default: that of a living engine)")
    return parser


def _count(text: str) -> int:
    try:
        count = request_count(text)
    except ValueError:
        count = 0
    if not 1 <= count <= MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {MOST_REQUESTS}")
    return int(count)


def _labels(reader: JournalReader, settings: Settings, asked: argparse.Namespace) -> tuple[Labels, bool]:
    """Return the labels of the first engine in the journal that is as asked for, living ones first.

    And whether there is one; without, they are made of what was asked for.
    """
    wanted = {name: getattr(asked, name) for name in ("model_name", "engine", "replica")}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    reader.poll()
    fitting = [s for s in reader.sources if all(getattr(s.labels, n) == v for n, v in wanted.items())]
    reader.close()
    living = sorted(fitting, key=lambda source: not source.active)
    model, replica = settings.model_name or "unknown", settings.replica or "0"
    nobody = Labels(model, "0", "torch", replica, host="", rank="", uuid="")
    found = living[0].labels if living else nobody
    return replace(found, **wanted, host=identity.host(), rank=DRILL_RANK, uuid=""), bool(living)


def _plant(folder: Folder, labels: Labels, count: int) -> list[str]:
    """Write `count` requests, each with one NaN; returns their ids.

    Raises:
        OSError: the journal did not take them.
    """
    start = identity.start_line(labels, None, device=None, counting=True, fail_fast=False)
    writer = JournalWriter(folder, labels, start)
    ids = [f"drill-{secrets.token_hex(4)}" for _ in range(count)]
    for request_id in ids:
        writer.put(_request(start.life, request_id))
    try:
        writer.commit(Totals(requests=count, corrupted_requests=count), time.time())
    finally:
        writer.close()
    return ids


def _request(life: str, request_id: str) -> CorruptedRequest:
    return CorruptedRequest(
        life=life,
        request_id=request_id,
        n=0,
        first_step=1,
        first_seen_seconds=time.time(),
        first_seen_boot_ns=boot_ns(),
        phase="decode",
        rows=1,
        values=1,
        finished=True,
    )


def _said(folder: Folder, labels: Labels, planted: list[str]) -> str:
    level = "critical" if len(planted) >= 5 else "warning"  # noqa: PLR2004  as rules.yml has it
    return (
        f"planted in {folder.path}: {', '.join(planted)}\n"
        f"for {labels.model_name} engine {labels.engine} replica {labels.replica} ({labels.runtime}); "
        "this is a drill, corrupted_requests_total does not move\n"
        "a sidecar that reads this folder shows it at once: "
        'nanwatch_drill_requests_total{drill="1"}, /v1/corrupted-requests\n'
        f"the alert NanwatchDrill ({level}) follows with Prometheus's next scrape and evaluation, "
        "and ends by itself after five minutes"
    )
