"""Reading one line of a journal file; what each says stands in line.py.

A line comes from a file that anybody may have harmed, so every value is looked at before it counts.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from .line import (
    OLDEST_READABLE_VERSION,
    VERSION,
    CorruptedRequest,
    FileLine,
    Labels,
    Line,
    LineError,
    ReportLine,
    StartLine,
    VersionError,
)
from .totals import COUNTS, TABLES, Totals

_PAST_ANY_COUNT = 1 << 63


def _as_it_is(entry: CorruptedRequest) -> CorruptedRequest:
    return entry


def decode(raw: bytes, known: Callable[[CorruptedRequest], CorruptedRequest] = _as_it_is) -> Line | None:
    """Return what one whole line says, or None for a kind that this version does not know.

    `known` may give back, for an entry just read, one like it that is at hand: a renewed file says all of
    its 10,000 entries again, in one line, and the two of each would take 4 MB more, for good.

    Raises:
        VersionError: a first line whose major version is out of reach.
        LineError: the bytes are no JSON object, or a key is missing or of the wrong type.
    """
    try:
        fields_ = json.loads(raw, object_hook=partial(_entry_at_once, known))
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
        run=_text(raw.get("run", "")),
        blind=_text(raw.get("blind", "")),
    )


def _decode_report(raw: dict[str, Any]) -> ReportLine:
    return ReportLine(
        boot_ns=_integer(raw["boot_ns"]),
        wall_seconds=_seconds(raw["wall_seconds"]),
        totals=_decode_totals(raw["totals"]),
        last_step_seconds=_seconds(raw.get("last_step_seconds", 0.0)),
        corrupted=tuple(map(_entry, raw.get("corrupted", ()))),
    )


def _entry_at_once(known: Callable[[CorruptedRequest], CorruptedRequest], raw: dict[str, Any]) -> Any:
    """Turn each entry into what it means as soon as it is parsed: 10,000 dicts at once are 10 MB for good.

    What only looks like one is left as it is; where an entry is expected it is refused.
    """
    if "request_id" not in raw:
        return raw
    try:
        return known(_decode_entry(raw))
    except (KeyError, TypeError):
        return raw


def _entry(parsed: Any) -> CorruptedRequest:
    return parsed if isinstance(parsed, CorruptedRequest) else _decode_entry(parsed)


def _decode_totals(raw: dict[str, Any]) -> Totals:
    cells: dict[str, Any] = {name: _integer(raw.get(name, 0)) for name in COUNTS}
    for name in TABLES:
        cells[name] = {str(key): _integer(value) for key, value in raw.get(name, {}).items()}
    return Totals(delay_sum_seconds=_seconds(raw.get("delay_sum_seconds", 0.0)), **cells)


def _decode_entry(raw: dict[str, Any]) -> CorruptedRequest:
    return CorruptedRequest(
        life=sys.intern(_text(raw["life"])),  # one string for thousands of entries
        request_id=_text(raw["request_id"]),
        n=_integer(raw["n"]),
        first_step=_integer(raw["first_step"]),
        first_seen_seconds=_seconds(raw["first_seen_seconds"]),
        first_seen_boot_ns=_integer(raw["first_seen_boot_ns"]),
        phase=sys.intern(_text(raw["phase"])),
        rows=_integer(raw["rows"]),
        values=_integer(raw["values"]),
        finished=bool(raw.get("finished", False)),
        client_id=_text(raw.get("client_id", "")),
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
