"""The lines of a journal file: what each says, and how it is written and read.

A file holds one JSON object a line, of three kinds:
    file    the first line: format version, the file's random id, the labels of its source
    start   a life begins: its identity and clock, and the totals that earlier lives left
    report  the cumulative totals, and the corrupted requests that are new or changed
Keys are only ever added; a reader ignores those it does not know. docs/journal.md says it in
words, tests/golden/journal.jsonl shows one file whole.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

VERSION = 1  # the major version: raised when a reader of the one before would miscount
OLDEST_READABLE_VERSION = 1
FILE_LINE_BEGINS = b'{"kind":"file",'
MOST_LINE_BYTES = 64 << 20  # 65,536 live corrupted requests take 16 MB; a longer line is not ours

DELAY_BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
DROP_REASONS = ("slots", "rows", "lost", "backlog", "capture", "error")  # why a step was not looked at


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


@dataclass(frozen=True, slots=True)
class FileLine:
    """The first line of a file; the id stays through renewal, healing and continuation."""

    file: str
    labels: Labels
    locked: bool = True  # False: the file system has no locks, alive is told by the heartbeat
    version: int = VERSION


@dataclass(slots=True)
class Totals:
    """What a file has counted over all its lives; every cell only grows."""

    steps: int = 0
    rows: int = 0  # logits rows looked at, padding left out
    nan_rows: int = 0
    nan_values: int = 0
    padding_nan_rows: int = 0
    unattributed_nan_rows: int = 0
    requests: int = 0
    corrupted_requests: int = 0
    fail_fast_trips: int = 0
    journal_errors: int = 0
    queue_full: int = 0  # per-request dicts that the caller's own queue did not take
    dropped_entries: int = 0  # corrupted requests, new or changed, let go before a line held them
    dropped_steps: dict[str, int] = field(default_factory=dict)  # by reason
    delay_counts: dict[str, int] = field(default_factory=dict)  # by upper bound in seconds, not cumulative
    delay_sum_seconds: float = 0.0

    def raise_to(self, other: "Totals") -> None:
        """Take the greater of each cell, so that no total ever falls."""
        for name in _SCALARS:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name in _TABLES:
            mine = getattr(self, name)
            for key, value in getattr(other, name).items():
                mine[key] = max(mine.get(key, 0), value)

    def plus(self, other: "Totals") -> "Totals":
        """Return the sum of both, cell by cell."""
        total = self.copy()
        for name in _SCALARS:
            setattr(total, name, getattr(self, name) + getattr(other, name))
        for name in _TABLES:
            table = getattr(total, name)
            for key, value in getattr(other, name).items():
                table[key] = table.get(key, 0) + value
        return total

    def copy(self) -> "Totals":
        """Return totals that share nothing with these."""
        return replace(self, dropped_steps=dict(self.dropped_steps), delay_counts=dict(self.delay_counts))

    def add_delay(self, seconds: float) -> None:
        """Put one observe-to-written delay into its bucket."""
        bound = next((f"{b:g}" for b in DELAY_BOUNDS_SECONDS if seconds <= b), "+Inf")
        self.delay_counts[bound] = self.delay_counts.get(bound, 0) + 1
        self.delay_sum_seconds += seconds


_TABLES = ("dropped_steps", "delay_counts")
_SCALARS = tuple(f.name for f in fields(Totals) if f.name not in _TABLES)
_COUNTS = tuple(name for name in _SCALARS if name != "delay_sum_seconds")


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
    return _encode({"kind": "file", **asdict(line)})


def encode_start(line: StartLine) -> bytes:
    """Return a start line, newline included."""
    return _encode({"kind": "start", **asdict(line)})


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
    )
    return text.encode("ascii")


def encode_report(line: ReportLine, entries: Iterable[bytes] = ()) -> bytes:
    """Return a report line, newline included.

    `entries` are encoded corrupted requests to write after those of `line`; they are joined and
    never encoded anew (10,000 of them take 4 ms instead of 22).
    """
    head = _dumps(
        {
            "kind": "report",
            "boot_ns": line.boot_ns,
            "wall_seconds": line.wall_seconds,
            "last_step_seconds": line.last_step_seconds,
            "totals": _flat(line.totals),
        }
    )
    listed = b",".join((*map(encode_corrupted, line.corrupted), *entries))
    return b"".join((head[:-1], b',"corrupted":[', listed, b"]}\n"))


def decode(raw: bytes) -> Line | None:
    """Return what one whole line says, or None for a kind that this version does not know.

    Raises:
        VersionError: a first line whose major version is out of reach.
        LineError: the bytes are no JSON object, or a key is missing or of the wrong type.
    """
    try:
        fields_ = json.loads(raw)
        kind = fields_["kind"]
        if kind == "file":
            return _decode_file(fields_)
        if kind == "start":
            return _decode_start(fields_)
        if kind == "report":
            return _decode_report(fields_)
    except LineError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"not a journal line ({type(error).__name__}: {error}): {raw[:80]!r}"
        raise LineError(msg) from error
    return None


_ENTRY = "{{" + ",".join(f'"{f.name}":{{{f.name}}}' for f in fields(CorruptedRequest)) + "}}"
_TOTALS_FIELDS = tuple(f.name for f in fields(Totals))
_PAST_ANY_COUNT = 1 << 63
_dumps_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode  # ASCII: any id survives


def _dumps(value: dict[str, Any]) -> bytes:
    return _dumps_text(value).encode("ascii")


def _flat(totals: Totals) -> dict[str, Any]:
    """As dataclasses.asdict, which copies deeply and takes ten times as long."""
    return {name: getattr(totals, name) for name in _TOTALS_FIELDS}


def _encode(value: dict[str, Any]) -> bytes:
    return _dumps(value) + b"\n"


def _decode_file(raw: dict[str, Any]) -> FileLine:
    version = _integer(raw["version"])
    if not OLDEST_READABLE_VERSION <= version <= VERSION:
        msg = f"journal version {version}, this nanwatch reads {OLDEST_READABLE_VERSION} to {VERSION}"
        raise VersionError(msg)
    labels = Labels(**{f.name: _text(raw["labels"][f.name]) for f in fields(Labels)})
    return FileLine(
        file=_text(raw["file"]), labels=labels, locked=bool(raw.get("locked", True)), version=version
    )


def _decode_start(raw: dict[str, Any]) -> StartLine:
    return StartLine(
        life=_text(raw["life"]),
        pid=_integer(raw["pid"]),
        device=_text(raw.get("device", "")),
        versions={str(k): str(v) for k, v in raw.get("versions", {}).items()},
        clock=_text(raw["clock"]),
        boot_ns=_integer(raw["boot_ns"]),
        wall_seconds=_seconds(raw["wall_seconds"]),
        totals=_decode_totals(raw["totals"]),
        counting=bool(raw.get("counting", True)),
        fail_fast=bool(raw.get("fail_fast", False)),
    )


def _decode_report(raw: dict[str, Any]) -> ReportLine:
    return ReportLine(
        boot_ns=_integer(raw["boot_ns"]),
        wall_seconds=_seconds(raw["wall_seconds"]),
        totals=_decode_totals(raw["totals"]),
        last_step_seconds=_seconds(raw.get("last_step_seconds", 0.0)),
        corrupted=tuple(_decode_entry(entry) for entry in raw.get("corrupted", ())),
    )


def _decode_totals(raw: dict[str, Any]) -> Totals:
    cells: dict[str, Any] = {name: _integer(raw.get(name, 0)) for name in _COUNTS}
    for name in _TABLES:
        cells[name] = {str(key): _integer(value) for key, value in raw.get(name, {}).items()}
    return Totals(delay_sum_seconds=_seconds(raw.get("delay_sum_seconds", 0.0)), **cells)


def _decode_entry(raw: dict[str, Any]) -> CorruptedRequest:
    return CorruptedRequest(
        life=_text(raw["life"]),
        request_id=_text(raw["request_id"]),
        n=_integer(raw["n"]),
        first_step=_integer(raw["first_step"]),
        first_seen_seconds=_seconds(raw["first_seen_seconds"]),
        first_seen_boot_ns=_integer(raw["first_seen_boot_ns"]),
        phase=_text(raw["phase"]),
        rows=_integer(raw["rows"]),
        values=_integer(raw["values"]),
        finished=bool(raw.get("finished", False)),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"expected text, found {value!r}"
        raise TypeError(msg)
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _PAST_ANY_COUNT:
        msg = f"expected a count, found {value!r}"
        raise TypeError(msg)
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _PAST_ANY_COUNT:
        msg = f"expected seconds, found {value!r}"
        raise TypeError(msg)
    return float(value)
