"""Everything about one GPU, in one command of less than three minutes: `python -m benchmarks.gpu`.

With a CUDA device and Triton it looks at (a) to (g), see benchmarks/cuda, prints each figure beside its
goal, and writes the table, with the card's name and the date, into docs/performance.md (--docs FILE: there
instead; --docs "": nowhere). Without a GPU it says so, runs (a) at small sizes in Triton's interpreter, and
writes nothing.

Exit status: 0 all that could be looked at was right, 1 something was wrong, 2 usage. A missed goal is a
figure, not an error, and so is a machine without a GPU.
"""

import argparse
import datetime as dt
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.cuda import correct
from benchmarks.measure import Line, print_table
from benchmarks.scratch import scratch_journal

DOCS = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what this machine can run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Everything about one GPU.")
    parser.add_argument("--docs", default=str(DOCS), help="the page that gets the table; '' for none")
    chosen = parser.parse_args([] if arguments is None else arguments)
    started = time.monotonic()
    with scratch_journal():
        status = _on_gpu(chosen.docs) if torch.cuda.is_available() else _in_the_interpreter()
    print(f"{time.monotonic() - started:.0f} seconds, status {status}")
    return status


def _on_gpu(docs: str) -> int:
    from benchmarks.cuda import host, promises, speed
    from benchmarks.cuda.card import Card
    from nanwatch.inspection import make_kernel

    card = Card()
    kernel = make_kernel(card.where)
    print(
        f"{card.name}, torch {torch.__version__}, the kernel {'is used' if kernel else 'CANNOT be had here'}"
    )
    found = correct.check(kernel, card.where)
    _say(found)
    seen = list(promises.checks(card))
    for check in seen:
        print(f"{'kept  ' if check.kept else 'BROKEN'} {check.promise}: {check.seen}")
    lines = [*host.lines(card), *host.allocations(card)]
    if kernel is not None:
        lines += speed.lines(card, kernel)
    print_table(f"on {card.name}", lines)
    if docs:
        write(Path(docs), page(card.name, found, seen, lines))
    return int(bool(found.wrong) or kernel is None or not all(check.kept for check in seen))


def _in_the_interpreter() -> int:
    """Run (a) at small sizes; what only a GPU can show is named, not guessed."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    print("no CUDA device here: (b) to (g) were not run, and no GPU timing has been taken by this run")
    try:
        from nanwatch.row_kernel import RowKernel

        kernel = RowKernel(multiprocessors=4)
    except ImportError:
        kernel = None
        print("no Triton here: the kernel was not run, torch's own operations alone were looked at")
    else:
        print("(a) at small sizes, in Triton's interpreter")
    found = correct.check(kernel, torch.device("cpu"), correct.SMALL_ROWS, correct.SMALL_COLUMNS)
    _say(found)
    return int(bool(found.wrong))


def _say(found: correct.Outcome) -> None:
    print(f"(a) {found.cases - len(found.wrong)} of {found.cases} cases right")
    for wrong in found.wrong[:20]:
        print(f"    WRONG {wrong}")


def page(
    name: str, found: correct.Outcome, seen: Sequence[tuple[str, bool, str]], lines: Sequence[Line]
) -> str:
    """Return the section of docs/performance.md."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    head = [f"{name}, torch {torch.__version__}, {today}: `python -m benchmarks.gpu`.", ""]
    head += [f"- (a) {found.cases - len(found.wrong)} of {found.cases} cases right"]
    head += [f"- {promise}: {'kept' if kept else '**broken**'}, {what}" for promise, kept, what in seen]
    rows = [" | ".join(line.cells()) for line in lines]
    table = [
        "",
        "| | median | middle half | goal | verdict |",
        "|---|---|---|---|---|",
        *(f"| {row} |" for row in rows),
    ]
    return "\n".join([*head, *table])


def write(docs: Path, section: str) -> None:
    """Put the section between the page's two marks.

    Raises:
        ValueError: the page has no such marks.
    """
    text = docs.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{docs} has no place for the table: {BEGIN} and {END} are missing")
    docs.write_text(f"{before}{BEGIN}\n{section}\n{END}{after}", encoding="utf-8")
    print(f"written into {docs}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
