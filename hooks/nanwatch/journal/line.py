"""The lines of a journal file: what each says, and how it is written. decoding.py reads them.

A file holds one JSON object a line, of three kinds:
    file    the first line: format version, the file's random id, the labels of its source
    start   a life begins: its identity and clock, and the totals that earlier lives left
    report  the cumulative totals, and the corrupted requests that are new or changed
Keys are only ever added; a reader ignores those it does not know. docs/journal.md says it in
words, tests/golden/journal.jsonl shows one file whole.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import chain, islice
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from .totals import Totals

VERSION = 1  # the major version: raised when a reader of the one before would miscount
OLDEST_READABLE_VERSION = 1
FILE_LINE_BEGINS = b'{"kind":"file",'
DRILL_RANK = "drill"  # the rank of a source that only `nanwatch drill` writes: shown apart, never counted
ENTRIES_A_PIECE = 256  # some 64 kB, which no allocator keeps for itself
MOST_LINE_BYTES = 64 << 20  # 65,536 live corrupted requests take 16 MB; a longer line is not ours


class LineError(ValueError):
    """A line that cannot be read: not JSON, not of a known shape, or of a version out of reach."""


class VersionError(LineError):
    """The file was written by a newer or a long gone major version of the format."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What tells one source from another, on /metrics and in the name of its file."""

    model_name: str
    engine: str  # the engine's index as vLLM names it; "0" where there is one
    runtime: str  # vllm, transformers, torch, ...
    replica: str
    host: str
    rank: str
    uuid: str  # the GPU's, as DCGM's exporter names it; "" on a CPU

    @property
    def is_drill(self) -> bool:
        """Whether its requests were planted by hand, so that somebody sees the alert arrive."""
        return self.rank == DRILL_RANK


@dataclass(frozen=True, slots=True)
class FileLine:
    """The first line of a file; the id stays through renewal, healing and continuation."""

    file: str
    labels: Labels
    locked: bool = True  # False: the file system has no locks, alive is told by the heartbeat
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class StartLine:
    """A life begins: one start of one engine process, or of one probe in it."""

    life: str  # one string on all ranks of one engine start
    pid: int
    device: str
    versions: dict[str, str]
    clock: str  # boot id and time namespace: boot times compare only where this is equal
    boot_ns: int
    wall_seconds: float
    totals: Totals
    counting: bool = True  # False: a rank that only annotates; its requests are not summed
    fail_fast: bool = False
    run: str = ""  # the `nanwatch run` that started the process, "" for none
    blind: str = ""  # why nobody looks at this engine, "" where somebody does


@dataclass(frozen=True, slots=True)
class CorruptedRequest:
    """One request with a NaN, as its source knows it; a later entry of the same key replaces it."""

    life: str
    request_id: str
    n: int  # how often this source had finished this id before
    first_step: int  # the source's own step number, from 1
    first_seen_seconds: float  # wall clock, for display
    first_seen_boot_ns: int  # boot time, for windows: a jump of the wall clock does not touch it
    phase: str  # of the first NaN: prompt, prefill, decode, verify
    rows: int  # logits rows with a NaN so far
    values: int  # NaN values so far
    finished: bool = False
    client_id: str = ""  # what the client calls it, where the engine's id is made from that; else ""

    @property
    def shown_id(self) -> str:
        """The id that people know it by."""
        return self.client_id or self.request_id

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it one request: (life, request id, n)."""
        return (self.life, self.request_id, self.n)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """The totals so far, and the corrupted requests that are new or changed since the last line."""

    boot_ns: int
    wall_seconds: float
    totals: Totals
    last_step_seconds: float = 0.0  # wall clock of the last step, 0 before the first
    corrupted: tuple[CorruptedRequest, ...] = ()


Line = FileLine | StartLine | ReportLine


def encode_file(line: FileLine) -> bytes:
    """Return the first line, newline included."""
    return _encode({"kind": "file", **_flat(line), "labels": _flat(line.labels)})


def encode_start(line: StartLine) -> bytes:
    """Return a start line, newline included."""
    return _encode({"kind": "start", **_flat(line), "totals": _flat(line.totals)})


def encode_corrupted(request: CorruptedRequest) -> bytes:
    """Return one entry of a report line, without its place in the list.

    As json.dumps of its fields, which takes three times as long; bursts have thousands of entries.
    """
    text = _ENTRY.format(
        life=_quoted(request.life),
        request_id=_quoted(request.request_id),
        n=request.n,
        first_step=request.first_step,
        first_seen_seconds=request.first_seen_seconds,
        first_seen_boot_ns=request.first_seen_boot_ns,
        phase=_quoted(request.phase),
        rows=request.rows,
        values=request.values,
        finished="true" if request.finished else "false",
        client_id=f',"client_id":{_quoted(request.client_id)}' if request.client_id else "",
    )
    return text.encode("ascii")


def encode_report(line: ReportLine, entries: Iterable[bytes] = ()) -> bytes:
    """Return a report line, newline included.

    `entries` are encoded corrupted requests to write after those of `line`; they are joined and
    never encoded anew (10,000 of them take 4 ms instead of 22).
    """
    return b"".join(report_pieces(line, entries))


def report_pieces(line: ReportLine, entries: Iterable[bytes] = ()) -> Iterator[bytes]:
    """Yield the same line piece by piece: 10,000 entries at once are 2.5 MB, twice while they are joined."""
    head = _dumps(
        {
            "kind": "report",
            "boot_ns": line.boot_ns,
            "wall_seconds": line.wall_seconds,
            "last_step_seconds": line.last_step_seconds,
            "totals": _flat(line.totals),
        }
    )
    yield head[:-1] + b',"corrupted":['
    remaining, between = chain(map(encode_corrupted, line.corrupted), entries), b""
    while piece := b",".join(islice(remaining, ENTRIES_A_PIECE)):
        yield between + piece
        between = b","
    yield b"]}\n"


_ALWAYS = [field.name for field in fields(CorruptedRequest) if field.name != "client_id"]
_ENTRY = "{{" + ",".join(f'"{name}":{{{name}}}' for name in _ALWAYS) + "{client_id}}}"
_dumps_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode  # ASCII: any id survives


def _dumps(value: dict[str, Any]) -> bytes:
    return _dumps_text(value).encode("ascii")


def _flat(said: FileLine | Labels | StartLine | Totals) -> dict[str, Any]:
    """As dataclasses.asdict one level deep; that copies all that it finds and takes ten times as long."""
    return {name: getattr(said, name) for name in said.__slots__}


def _encode(value: dict[str, Any]) -> bytes:
    return _dumps(value) + b"\n"
