"""The format, pinned: tests/golden/journal.jsonl is what the writer writes, and what the reader reads.

Where this fails the format has changed. docs/journal.md says when it may, and that the version is
raised where a reader of the version before would miscount. After that, on purpose:
    python -m tests.journal.test_golden
"""

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nanwatch.journal import memory
from nanwatch.journal.decoding import decode
from nanwatch.journal.fold import Fold
from nanwatch.journal.folder import Folder
from nanwatch.journal.line import CorruptedRequest, FileLine, Labels, ReportLine, StartLine
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "journal.jsonl"
DOCS = ROOT / "docs" / "journal.md"
FILE_ID = "0123456789abcdef0123456789abcdef"
CLOCK = "5c0b6d4a-1f1e-4c1d-9d55-4f5e8d0c9a77/time:[4026531834]"
LABELS = Labels(
    model_name="meta-llama/Llama-3.1-8B",
    engine="0",
    runtime="vllm",
    replica="0",
    host="node-7",
    rank="0",
    uuid="GPU-8c3b6f1e-5a5d-4c0e-9d0f-2f1f0d6f7a11",
)
FIRST_TOTALS = Totals(
    steps=120,
    rows=960,
    nan_rows=7,
    nan_values=224_000,
    padding_nan_rows=3,
    unattributed_nan_rows=1,
    posinf_rows=5,
    fully_masked_rows=2,
    requests=40,
    corrupted_requests=2,
    queue_full=1,
    dropped_steps={"slots": 2},
    delay_counts={"0.0025": 1, "0.005": 1},
    delay_sum_seconds=0.0065,
)
SECOND_TOTALS = Totals(steps=8, rows=64, nan_rows=1, nan_values=32_000, requests=8, corrupted_requests=1)


def start(life: str, boot_ns: int, *, fail_fast: bool = False) -> StartLine:
    return StartLine(
        life=life,
        pid=4711,
        device="cuda:0",
        versions={"nanwatch": "0.1.0", "torch": "2.13.0"},
        clock=CLOCK,
        boot_ns=boot_ns,
        wall_seconds=boot_ns / 1e9 + 1_750_000_000,
        totals=Totals(),
        fail_fast=fail_fast,
    )


def request(life: str, request_id: str, boot_ns: int, **changed: Any) -> CorruptedRequest:
    usual: dict[str, Any] = {"n": 0, "first_step": 17, "phase": "decode", "rows": 1, "values": 32_000}
    return CorruptedRequest(
        life=life,
        request_id=request_id,
        first_seen_seconds=boot_ns / 1e9 + 1_750_000_000,
        first_seen_boot_ns=boot_ns,
        **(usual | changed),
    )


def write(folder: Path) -> bytes:
    """Write what two lives of one source say, by clocks and an id that are always the same."""
    now = 0

    def tick() -> int:
        nonlocal now
        now += 250_000_000
        return now

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(memory, "boot_ns", tick))
        stack.enter_context(mock.patch("time.time", side_effect=lambda: now / 1e9 + 1_750_000_000))
        stack.enter_context(mock.patch("secrets.token_hex", return_value=FILE_ID))
        _first_life(JournalWriter(Folder(folder), LABELS, start("life-1", 100)))
        _second_life(JournalWriter(Folder(folder), LABELS, start("life-2", 900_000_000, fail_fast=True)))
    (path,) = folder.iterdir()
    return path.read_bytes()


def _first_life(writer: JournalWriter) -> None:
    writer.commit(Totals())
    writer.put(request("life-1", "chatcmpl-1", 300_000_000, phase="prefill"))
    writer.put(request("life-1", 'caf\u00e9 "\\\n\ud800', 300_000_000, n=3))
    writer.commit(Totals(steps=17, rows=136, nan_rows=2, requests=9, corrupted_requests=2), 1_750_000_000.3)
    writer.put(request("life-1", "chatcmpl-1", 300_000_000, phase="prefill", rows=6, finished=True))
    writer.commit(FIRST_TOTALS, 1_750_000_000.7)
    writer.close()


def _second_life(writer: JournalWriter) -> None:
    writer.commit(Totals())
    writer.put(request("life-2", "chatcmpl-1-5c0b6d4a", 1_100_000_000, first_step=8, client_id="1"))
    writer.commit(SECOND_TOTALS, 1_750_000_001.1)
    writer.close()


def read(tmp_path: Path, content: bytes) -> JournalReader:
    (tmp_path / "journal.jsonl").write_bytes(content)
    reader = JournalReader(tmp_path)
    reader.poll()
    reader.close()
    return reader


def test_the_writer_writes_exactly_this(tmp_path: Path) -> None:
    """Byte for byte: keys, their order, and how a second life goes on."""
    assert write(tmp_path / "journal").decode() == GOLDEN.read_text(encoding="ascii")


def test_every_kind_of_line_is_in_it() -> None:
    """... and a request in each state that it can be in."""
    kinds = [json.loads(line)["kind"] for line in GOLDEN.read_text(encoding="ascii").splitlines()]
    assert kinds == ["file", "start", "report", "report", "report", "start", "report", "report"]


def test_the_reader_reads_exactly_this(tmp_path: Path) -> None:
    """The totals of both lives, the requests as last told, and who they belong to."""
    assert_is_golden(read(tmp_path, GOLDEN.read_bytes()))


def assert_is_golden(reader: JournalReader) -> None:
    assert reader.problems == ()
    (source,) = reader.sources
    assert (source.file, source.labels) == (FILE_ID, LABELS)
    assert source.totals == FIRST_TOTALS.plus(SECOND_TOTALS)
    assert (source.totals.corrupted_requests, source.totals.requests) == (3, 48)
    assert [entry for _, entry in source.corrupted.items()] == [
        request("life-1", "chatcmpl-1", 300_000_000, phase="prefill", rows=6, finished=True),
        request("life-1", 'caf\u00e9 "\\\n\ud800', 300_000_000, n=3),
        request("life-2", "chatcmpl-1-5c0b6d4a", 1_100_000_000, first_step=8, client_id="1"),
    ]
    assert source.start is not None
    assert (source.start.life, source.start.fail_fast, source.start.totals) == ("life-2", True, FIRST_TOTALS)
    assert source.last_step_seconds == 1_750_000_001.1


def test_the_writer_goes_on_from_exactly_this() -> None:
    """The writer's own fold of it says what the reader says."""
    fold = Fold()
    for line in GOLDEN.read_bytes().splitlines(keepends=True):
        fold.take(line)
    assert fold.totals == FIRST_TOTALS.plus(SECOND_TOTALS)
    assert fold.skipped_lines == 0


def of_tomorrow(value: Any) -> Any:
    """Return the same with a key more in every object."""
    if isinstance(value, dict):
        tables = ("dropped_steps", "delay_counts", "versions")
        grown = {key: item if key in tables else of_tomorrow(item) for key, item in value.items()}
        return grown | {"of_tomorrow": {"a": [1, None]}}
    return [of_tomorrow(item) for item in value] if isinstance(value, list) else value


def test_keys_and_kinds_of_tomorrow_are_ignored(tmp_path: Path) -> None:
    """A minor version that is newer than the reader."""
    lines = []
    for line in GOLDEN.read_bytes().splitlines():
        lines += [json.dumps(of_tomorrow(json.loads(line))), '{"kind":"of_tomorrow","totals":7}']
    assert_is_golden(read(tmp_path, "\n".join([*lines, ""]).encode()))


def test_a_newer_major_version_is_refused_with_both_named(tmp_path: Path) -> None:
    """Nothing of it is counted, and /readyz can say why."""
    reader = read(tmp_path, GOLDEN.read_bytes().replace(b'"version":1', b'"version":2', 1))
    assert reader.sources == ()
    assert reader.problems == (f"{tmp_path}/journal.jsonl: journal version 2, this nanwatch reads 1 to 1",)


@pytest.mark.parametrize("cut", range(1, 9))
def test_any_number_of_its_lines_is_a_whole_file(tmp_path: Path, cut: int) -> None:
    """A reader takes it as far as it goes: totals only rise from line to line."""
    lines = GOLDEN.read_bytes().splitlines(keepends=True)
    reader = read(tmp_path, b"".join(lines[:cut]))
    (source,) = reader.sources
    assert source.totals.corrupted_requests == [0, 0, 0, 2, 2, 2, 2, 3][cut - 1]


def keys_in(value: Any) -> set[str]:
    """Return every key of a line, save those of tables that are named by their content."""
    if isinstance(value, dict):
        tables = ("dropped_steps", "delay_counts", "versions")
        return set(value).union(*(keys_in(item) for key, item in value.items() if key not in tables))
    return set().union(*map(keys_in, value)) if isinstance(value, list) else set()


def test_every_key_is_explained() -> None:
    """docs/journal.md names each key of the golden file, and its examples are lines."""
    page = DOCS.read_text(encoding="utf-8")
    keys = keys_in([json.loads(line) for line in GOLDEN.read_bytes().splitlines()]) - {"kind"}
    assert {key for key in keys if f"`{key}`" not in page} == set()
    examples = [line for line in page.splitlines() if line.startswith('{"kind"')]
    assert [type(decode(example.encode())) for example in examples] == [FileLine, StartLine, ReportLine]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        GOLDEN.write_bytes(write(Path(place) / "journal"))
