"""What a line says comes back as it was, and what is no line of ours is refused in words."""

import json
import math
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanwatch.journal import line as line_module
from nanwatch.journal.decoding import decode
from nanwatch.journal.line import (
    FILE_LINE_BEGINS,
    VERSION,
    CorruptedRequest,
    FileLine,
    Labels,
    LineError,
    ReportLine,
    StartLine,
    VersionError,
    encode_corrupted,
    encode_file,
    encode_report,
    encode_start,
)
from nanwatch.journal.totals import DELAY_BOUNDS_SECONDS, Totals
from tests.engine import LABELS, corrupted, start_line

MOST = (1 << 63) - 1


def spells_no_pair(text: str) -> bool:
    """Two lone surrogates that make a pair are, in JSON, the one character that they spell."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") == text


texts = st.text(st.characters()).filter(spells_no_pair)  # any code point, lone surrogates too
counts = st.integers(0, MOST)
seconds = st.floats(0, 1e12)
tables = st.dictionaries(texts, counts, max_size=3)
totals = st.builds(
    Totals,
    **{f.name: counts for f in fields(Totals) if f.type is int},
    dropped_steps=tables,
    delay_counts=tables,
    delay_sum_seconds=seconds,
)
labels = st.builds(Labels, **dict.fromkeys(Labels.__slots__, texts))
requests = st.builds(
    CorruptedRequest,
    life=texts,
    request_id=texts,
    n=counts,
    first_step=counts,
    first_seen_seconds=seconds,
    first_seen_boot_ns=counts,
    phase=texts,
    rows=counts,
    values=counts,
)
starts = st.builds(
    StartLine,
    life=texts,
    pid=counts,
    device=texts,
    versions=st.dictionaries(texts, texts, max_size=3),
    clock=texts,
    boot_ns=counts,
    wall_seconds=seconds,
    totals=totals,
)
reports = st.builds(
    ReportLine,
    boot_ns=counts,
    wall_seconds=seconds,
    totals=totals,
    last_step_seconds=seconds,
    corrupted=st.lists(requests, max_size=3).map(tuple),
)


def as_dict(raw: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw)
    return found


def changed(raw: bytes, **keys: Any) -> bytes:
    return json.dumps(as_dict(raw) | keys).encode() + b"\n"


REPORT = encode_report(ReportLine(5, 6.0, Totals(), corrupted=(corrupted(),)))


@given(st.builds(FileLine, file=texts, labels=labels, locked=st.booleans()))
def test_a_first_line_comes_back(line: FileLine) -> None:
    """Whatever a label holds."""
    assert decode(encode_file(line)) == line


@given(starts)
def test_a_start_line_comes_back(line: StartLine) -> None:
    """Identity, clock and totals."""
    assert decode(encode_start(line)) == line


@given(reports)
def test_a_report_comes_back(line: ReportLine) -> None:
    """Totals of any size and requests of any id."""
    assert decode(encode_report(line)) == line


@given(st.lists(requests, max_size=4))
def test_encoded_entries_are_joined_as_they_are(entries: list[CorruptedRequest]) -> None:
    """Entries that were encoded earlier say the same as those encoded now."""
    joined = encode_report(ReportLine(1, 2.0, Totals()), map(encode_corrupted, entries))
    assert joined == encode_report(ReportLine(1, 2.0, Totals(), corrupted=tuple(entries)))


@given(requests, st.booleans())
def test_an_entry_is_the_json_of_its_fields(request: CorruptedRequest, finished: bool) -> None:  # noqa: FBT001
    """Written by a template, because json takes three times as long; the bytes are json's."""
    request = replace(request, finished=finished)
    assert encode_corrupted(request) == json.dumps(asdict(request), separators=(",", ":")).encode()


@given(st.one_of(reports.map(encode_report), starts.map(encode_start)))
def test_a_line_is_one_line_of_ascii(raw: bytes) -> None:
    """Ids cannot break a line: no newline but the last, no byte that a reader could misread."""
    assert raw.count(b"\n") == 1
    assert raw.endswith(b"}\n")
    assert raw.isascii()


def test_the_lines_by_example() -> None:
    """These bytes are the format."""
    assert encode_file(FileLine("f1", LABELS)) == (
        b'{"kind":"file","file":"f1","labels":{"model_name":"llama","engine":"0","runtime":"torch",'
        b'"replica":"0","host":"node-1","rank":"0","uuid":"GPU-1"},"locked":true,"version":1}\n'
    )
    request = CorruptedRequest("life-1", 'a"\\\n\u20ac\ud800', 0, 17, 1.5, 99, "decode", 1, 32000)
    assert encode_corrupted(request) == (
        b'{"life":"life-1","request_id":"a\\"\\\\\\n\\u20ac\\ud800","n":0,"first_step":17,'
        b'"first_seen_seconds":1.5,"first_seen_boot_ns":99,"phase":"decode","rows":1,"values":32000,'
        b'"finished":false}'
    )
    assert encode_report(ReportLine(7, 8.25, Totals(steps=3, dropped_steps={"slots": 1})), [b"1", b"2"]) == (
        b'{"kind":"report","boot_ns":7,"wall_seconds":8.25,"last_step_seconds":0.0,"totals":{"steps":3,'
        b'"rows":0,"nan_rows":0,"nan_values":0,"padding_nan_rows":0,"unattributed_nan_rows":0,'
        b'"posinf_rows":0,"fully_masked_rows":0,"requests":0,'
        b'"corrupted_requests":0,"fail_fast_trips":0,"journal_errors":0,"queue_full":0,"dropped_entries":0,'
        b'"aborted_requests":0,"kv_poisoned_blocks":0,"quarantined_blocks":0,"released_blocks":0,'
        b'"dropped_steps":{"slots":1},"delay_counts":{},"delay_sum_seconds":0.0},"corrupted":[1,2]}\n'
    )


def test_every_first_line_begins_alike() -> None:
    """By this a starter tells a half-written first line of ours from another's file."""
    assert encode_file(FileLine("f1", LABELS)).startswith(FILE_LINE_BEGINS)


def test_unknown_keys_are_ignored() -> None:
    """Keys are only ever added: a later version of the same major is read."""
    report = as_dict(REPORT)
    report["totals"]["of_tomorrow"] = {"a": 1}
    report["corrupted"][0]["of_tomorrow"] = [1]
    assert decode(changed(REPORT, **report, of_tomorrow=None)) == decode(REPORT)
    first = encode_file(FileLine("f1", LABELS))
    more_labels = asdict(LABELS) | {"of_tomorrow": "x"}
    assert decode(changed(first, labels=more_labels, of_tomorrow=1)) == decode(first)
    start = encode_start(start_line())
    assert decode(changed(start, of_tomorrow=1)) == decode(start)


def test_keys_that_came_later_have_defaults() -> None:
    """An earlier version of the same major is read."""
    line = decode(b'{"kind":"report","boot_ns":1,"wall_seconds":2,"totals":{"steps":3}}\n')
    assert line == ReportLine(1, 2.0, Totals(steps=3))
    start = decode(
        b'{"kind":"start","life":"a","pid":1,"clock":"c","boot_ns":1,"wall_seconds":2.5,"totals":{}}'
    )
    assert start == StartLine("a", 1, "", {}, "c", 1, 2.5, Totals(), counting=True, fail_fast=False)


def test_an_unknown_kind_says_nothing() -> None:
    """A kind of tomorrow is no error."""
    assert decode(b'{"kind":"of_tomorrow"}\n') is None


@pytest.mark.parametrize("version", [0, VERSION + 1, 99])
def test_a_version_out_of_reach_is_named_with_ours(version: int) -> None:
    """Both versions are in the message."""
    raw = changed(encode_file(FileLine("f1", LABELS)), version=version)
    with pytest.raises(VersionError, match=f"^journal version {version}, this nanwatch reads 1 to 1$"):
        decode(raw)


NOT_LINES = [
    b"",
    b"\n",
    b"\0\0\0\0\n",
    b"garbage\n",
    b"\xff\xfe\n",
    b"[]\n",
    b"17\n",
    b'"text"\n',
    b"{}\n",
    b'{"kind":"file"}\n',
    b'{"kind":"start"}\n',
    b'{"kind":"report"}\n',
    b"[" * 100_000,
    REPORT[:-2],
    changed(REPORT, totals=[]),
    changed(REPORT, totals={"steps": -1}),
    changed(REPORT, totals={"steps": 1.5}),
    changed(REPORT, totals={"steps": True}),
    changed(REPORT, totals={"steps": 1 << 63}),
    changed(REPORT, totals={"dropped_steps": {"slots": "1"}}),
    changed(REPORT, totals={"delay_sum_seconds": math.nan}),
    changed(REPORT, totals={"delay_sum_seconds": math.inf}),
    changed(REPORT, totals={"delay_sum_seconds": 10**400}),
    changed(REPORT, wall_seconds="1"),
    changed(REPORT, wall_seconds=True),
    changed(REPORT, boot_ns=1.5),
    changed(REPORT, corrupted=[{}]),
    changed(REPORT, corrupted=7),
    changed(encode_file(FileLine("f1", LABELS)), file=7),
    changed(encode_file(FileLine("f1", LABELS)), labels={"model_name": "m"}),
    changed(encode_start(start_line()), versions=7),
]


@pytest.mark.parametrize("raw", NOT_LINES, ids=range(len(NOT_LINES)))
def test_what_is_no_line_is_refused(raw: bytes) -> None:
    """Always the same error, whatever is wrong with it."""
    with pytest.raises(LineError):
        decode(raw)


def test_a_refusal_shows_the_beginning_of_the_line() -> None:
    """Enough to find it, never all of it."""
    with pytest.raises(LineError, match=r"^not a journal line \(JSONDecodeError: .*\): b'x{80}'$"):
        decode(b"x" * 10_000)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    """A line says something, or nothing, or is refused."""
    try:
        decode(raw)
    except LineError:
        return


@given(totals, totals)
def test_raising_takes_the_greater_of_each_cell(one: Totals, other: Totals) -> None:
    """No cell falls, and raising twice changes nothing."""
    raised = one.copy()
    raised.raise_to(other)
    for name, cell in asdict(raised).items():
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(cell, dict):
            assert cell == {
                key: max(mine.get(key, 0), theirs.get(key, 0)) for key in mine.keys() | theirs.keys()
            }
        else:
            assert cell == max(mine, theirs)
    again = raised.copy()
    again.raise_to(other)
    again.raise_to(one)
    assert again == raised


@given(totals, totals)
def test_plus_adds_each_cell_and_shares_nothing(one: Totals, other: Totals) -> None:
    """The sum is a new object down to its tables."""
    before = asdict(one), asdict(other)
    total = one.plus(other)
    for name, cell in asdict(total).items():
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(cell, dict):
            assert cell == {key: mine.get(key, 0) + theirs.get(key, 0) for key in mine.keys() | theirs.keys()}
        else:
            assert cell == mine + theirs
    total.dropped_steps["new"] = total.delay_counts["new"] = 1
    total.steps += 1
    assert (asdict(one), asdict(other)) == before


def test_totals_by_example() -> None:
    """Raise and add, with tables that only one of them has."""
    one = Totals(steps=3, rows=1, dropped_steps={"slots": 2}, delay_sum_seconds=0.5)
    other = Totals(steps=2, rows=4, dropped_steps={"lost": 1}, delay_counts={"0.01": 6})
    assert one.plus(other) == Totals(
        steps=5,
        rows=5,
        dropped_steps={"slots": 2, "lost": 1},
        delay_counts={"0.01": 6},
        delay_sum_seconds=0.5,
    )
    one.raise_to(other)
    assert one == Totals(
        steps=3,
        rows=4,
        dropped_steps={"slots": 2, "lost": 1},
        delay_counts={"0.01": 6},
        delay_sum_seconds=0.5,
    )


def test_a_delay_goes_into_the_first_bucket_that_holds_it() -> None:
    """Bounds are inclusive, as Prometheus has them; past the last there is +Inf."""
    totals = Totals()
    for delay in (0.0, 0.001, 0.0011, 10.0, 10.1):
        totals.add_delay(delay)
    assert totals.delay_counts == {"0.001": 2, "0.0025": 1, "10": 1, "+Inf": 1}
    assert totals.delay_sum_seconds == pytest.approx(20.1021)
    assert list(DELAY_BOUNDS_SECONDS) == sorted(DELAY_BOUNDS_SECONDS)


def test_the_key_of_a_request() -> None:
    """(life, id, n): an id that is used again is another request."""
    assert corrupted("a", n=3).key == ("life-1", "a", 3)


def test_every_field_of_an_entry_is_written() -> None:
    """A field that is added and not put into the template fails here."""
    assert set(json.loads(encode_corrupted(corrupted()))) == {f.name for f in fields(CorruptedRequest)}
    assert set(json.loads(REPORT)["totals"]) == {f.name for f in fields(Totals)}
    assert 65_536 * len(encode_corrupted(corrupted("x" * 36))) < line_module.MOST_LINE_BYTES
