"""Which file a life gets: the first of its slot that is new, or dead and its own."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from nanwatch.journal import claim as claim_module
from nanwatch.journal import descriptors
from nanwatch.journal.claim import Claim, claim, slot_of
from nanwatch.journal.folder import Folder
from nanwatch.journal.line import FileLine, Labels, ReportLine, encode_file, encode_report, encode_start
from nanwatch.journal.totals import Totals
from tests.engine import LABELS, Engine, labels, start_line
from tests.journal.dying import Action, Process, fail
from tests.journal.forked import User, in_child, only_root
from tests.journal.told import is_free

SLOT = "52a003959f818ae8"
FIRST_LINE = encode_file(FileLine("dead", LABELS))
DEAD = FIRST_LINE + encode_start(start_line()) + encode_report(ReportLine(1, 2.0, Totals(steps=7)))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def no_files_left() -> Iterator[None]:
    """Close what a test claimed, and nothing of another's."""
    before = set(descriptors._open)
    yield
    for descriptor in set(descriptors._open) - before:
        descriptors.close(descriptor)


def k_path(folder: Folder, k: int = 0) -> Path:
    return folder.path / f"{slot_of(LABELS)}-{k}.jsonl"


def k_of(found: Claim) -> str:
    return found.file.path.name.removeprefix(slot_of(LABELS))


def test_the_slot_is_made_of_every_label() -> None:
    """One for all lives of a source; another label, another slot."""
    assert slot_of(LABELS) == SLOT
    others = {slot_of(labels(**{name: "other"})) for name in Labels.__slots__}
    assert len(others | {SLOT}) == len(Labels.__slots__) + 1
    assert slot_of(labels(model_name="a", engine="b")) != slot_of(labels(model_name="ab", engine=""))
    assert len(slot_of(labels(model_name="\ud800 \u20ac"))) == len(SLOT)


def test_a_new_file_is_locked_and_empty(folder: Folder) -> None:
    """K = 0; the next one with the same labels gets k = 1, other labels a k = 0 of their own."""
    found = claim(folder, LABELS)
    assert (k_of(found), found.file.size, found.file.locked, found.fold.file) == ("-0.jsonl", 0, True, None)
    assert not is_free(k_path(folder))
    assert k_of(claim(folder, LABELS)) == "-1.jsonl"
    assert claim(folder, labels(rank="1")).file.path.name.endswith("-0.jsonl")


def test_a_dead_file_is_gone_on_with(folder: Folder) -> None:
    """All that its whole lines said is known, and nothing of it is touched."""
    k_path(folder).write_bytes(DEAD)
    found = claim(folder, LABELS)
    assert (k_of(found), found.file.size, found.fold.totals.steps) == ("-0.jsonl", len(DEAD), 7)
    assert found.fold.file == FileLine("dead", LABELS)
    assert k_path(folder).read_bytes() == DEAD


def test_a_half_written_last_line_is_cut(folder: Folder) -> None:
    """... so that the next line stands by itself."""
    k_path(folder).write_bytes(DEAD + b'{"kind":"report","boo')
    assert claim(folder, LABELS).file.size == len(DEAD)
    assert k_path(folder).read_bytes() == DEAD


def test_lines_in_the_middle_that_do_not_parse_are_left_where_they_are(folder: Folder) -> None:
    """What a power loss left is skipped, not cut: what follows it counts."""
    k_path(folder).write_bytes(FIRST_LINE + b"\0\0\0\n" + DEAD[len(FIRST_LINE) :])
    found = claim(folder, LABELS)
    assert (found.fold.totals.steps, found.fold.skipped_lines) == (7, 1)
    assert k_path(folder).read_bytes().count(b"\0") == 3


@pytest.mark.parametrize("beginning", [b"", b"{", FIRST_LINE[:20], FIRST_LINE[:-1]])
def test_a_file_without_a_whole_first_line_is_ours_to_begin(folder: Folder, beginning: bytes) -> None:
    """Nothing was ever counted from it."""
    k_path(folder).write_bytes(beginning)
    found = claim(folder, LABELS)
    assert (k_of(found), found.file.size, found.fold.file) == ("-0.jsonl", 0, None)
    assert k_path(folder).read_bytes() == b""


def a_held_file(path: Path) -> None:
    path.write_bytes(DEAD)
    holder = descriptors.open_file(path, os.O_RDWR, 0)
    fcntl.flock(holder, fcntl.LOCK_EX)


def a_link(path: Path) -> None:
    path.with_suffix(".target").write_bytes(DEAD)
    path.symlink_to(f"{path.stem}.target")


def a_hard_link(path: Path) -> None:
    path.write_bytes(DEAD)
    path.with_suffix(".other-name").hardlink_to(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(path.parent, os.O_RDONLY)  # a socket's path is at most 107 bytes
        server.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


OBSTACLES: dict[str, Callable[[Path], object]] = {
    "held by another": a_held_file,
    "of other labels": lambda path: path.write_bytes(
        encode_file(FileLine("f", replace(LABELS, rank="9"))) + b"\n"
    ),
    "of a newer major version": lambda path: path.write_bytes(
        encode_file(FileLine("f", LABELS, version=2)) + b"\n"
    ),
    "garbage": lambda path: path.write_bytes(b"garbage\nof\nlines\n"),
    "garbage without a newline": lambda path: path.write_bytes(b"garbage"),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "a report first": lambda path: path.write_bytes(DEAD[len(FIRST_LINE) :]),
    "an empty first line": lambda path: path.write_bytes(b"\n" + DEAD),
    "a folder": lambda path: path.mkdir(),
    "a link": a_link,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a hard link": a_hard_link,
    "a pipe": os.mkfifo,
    "a socket": a_socket,
}


@pytest.mark.parametrize("put", OBSTACLES.values(), ids=OBSTACLES)
def test_what_is_not_ours_is_left_alone(folder: Folder, put: Callable[[Path], object]) -> None:
    """The next k; and what was there is as it was."""
    put(k_path(folder))
    before = look_of(folder.path)
    assert k_of(claim(folder, LABELS)) == "-1.jsonl"
    k_path(folder, 1).unlink()
    assert look_of(folder.path) == before


def look_of(folder: Path) -> list[tuple[Any, ...]]:
    """What is in a folder, down to modes and contents."""
    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes() if path.is_file() else None
        status = path.lstat()
        found.append((path.name, status.st_ino, status.st_mode, status.st_size, data))
    return found


@only_root
def test_another_users_file_is_left_alone(folder: Folder) -> None:
    """Even root goes on with nobody else's file."""
    k_path(folder).write_bytes(DEAD)
    os.chown(k_path(folder), 40_000, 40_000)
    assert k_of(claim(folder, LABELS)) == "-1.jsonl"
    assert (k_path(folder).read_bytes(), k_path(folder).stat().st_uid) == (DEAD, 40_000)


@only_root
def test_a_file_that_may_not_be_opened_is_left_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Mode 000, for somebody who is not root."""
    place = tmp_path_factory.getbasetemp()
    folder = Folder(place / "journal")
    folder.path.mkdir()
    k_path(folder).write_bytes(DEAD)
    k_path(folder).chmod(0)
    for path in (folder.path, k_path(folder)):
        os.chown(path, 40_000, 40_000)
    here = os.open(folder.path, os.O_RDONLY)  # pytest's own folders are closed to others

    def claim_there() -> str:
        os.fchdir(here)
        return k_of(claim(Folder(Path()), LABELS))

    assert in_child(claim_there, User(40_000, 40_000)) == "-1.jsonl"
    os.close(here)


def test_a_line_past_any_length_of_ours_makes_a_file_foreign(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read into memory whole."""
    monkeypatch.setattr(claim_module, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(claim_module, "_CHUNK_BYTES", 700)
    k_path(folder).write_bytes(FIRST_LINE + b"x" * 2000)
    assert k_of(claim(folder, LABELS)) == "-1.jsonl"


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
def test_lines_are_put_together_from_any_chunks(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Where the reads end has no meaning."""
    monkeypatch.setattr(claim_module, "_CHUNK_BYTES", chunk)
    k_path(folder).write_bytes(DEAD + b"half")
    found = claim(folder, LABELS)
    assert (found.file.size, found.fold.totals.steps, found.fold.skipped_lines) == (len(DEAD), 7, 0)


def test_an_end_of_files_is_said_in_words(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should something make files without end."""
    monkeypatch.setattr(claim_module, "MOST_FILES", 2)
    claim(folder, LABELS), claim(folder, LABELS)
    with pytest.raises(OSError, match=r"none of 2 files is free: '.*-\*\.jsonl'"):
        claim(folder, LABELS)


def claim_in(process: Process, folder: Folder, **healing: Any) -> Any:
    own = process.module("line").Labels(**asdict(LABELS))
    return process.module("claim").claim(process.module("folder").Folder(folder.path), own, **healing)


def test_after_a_renewal_in_between_the_same_file_is_looked_at_again(
    folder: Folder, process: Process
) -> None:
    """Opened, then renewed by its writer who dies at once: the new file at that path is the one."""
    k_path(folder).write_bytes(FIRST_LINE)

    def renew_once(call: str) -> None:
        if call == "flock" and process.calls.count("flock") == 0:
            new = folder.path / "new"
            new.write_bytes(DEAD)
            new.rename(k_path(folder))

    process.before_call = renew_once
    found = claim_in(process, folder)
    assert (k_of(found), found.fold.totals.steps, found.file.size) == ("-0.jsonl", 7, len(DEAD))
    assert process.calls.count("flock") == 2
    assert process.open_descriptors == 1


def test_a_file_deleted_in_between_is_made_again(folder: Folder, process: Process) -> None:
    """... at the same path."""
    k_path(folder).write_bytes(DEAD)

    def delete_once(call: str) -> None:
        if call == "flock" and process.calls.count("flock") == 0:
            k_path(folder).unlink()

    process.before_call = delete_once
    found = claim_in(process, folder)
    assert (k_of(found), found.file.size) == ("-0.jsonl", 0)


@pytest.mark.parametrize("tries", [1, 2, 3, 4])
def test_a_probing_reader_costs_two_tries_at_most(folder: Folder, process: Process, tries: int) -> None:
    """The lock is tried three times: a reader that lets go by then costs no file."""
    k_path(folder).write_bytes(DEAD)
    reader = os.open(k_path(folder), os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)

    def let_go(call: str) -> None:
        if call == "flock" and process.calls.count("flock") == tries - 1:
            fcntl.flock(reader, fcntl.LOCK_UN)

    process.before_call = let_go
    assert k_of(claim_in(process, folder)) == ("-0.jsonl" if tries <= 3 else "-1.jsonl")
    os.close(reader)


def test_tries_are_five_milliseconds_apart(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them, not after the last."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    a_held_file(k_path(folder))
    claim(folder, LABELS)
    assert pauses == [0.005, 0.005]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_without_locks_a_file_of_a_random_name_is_made(folder: Folder, process: Process, number: int) -> None:
    """It says so in its first line, and no life goes on with it."""
    process.always["flock"] = fail(number)
    one, other = claim_in(process, folder), claim_in(process, folder)
    assert [one.file.locked, other.file.locked] == [False, False]
    assert one.file.path != other.file.path
    assert all(len(found.file.path.stem) == len(SLOT) + 1 + 16 for found in (one, other))
    assert {path.name for path in folder.path.iterdir()} == {
        one.file.path.name,
        other.file.path.name,
        k_path(folder).name,  # made to find out; it stays empty
    }


def test_locks_that_fail_otherwise_are_an_error(folder: Folder, process: Process) -> None:
    """An I/O error is no file system without locks."""
    process.always["flock"] = fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        claim_in(process, folder)
    assert process.open_descriptors == 0


def test_a_mount_that_gives_files_to_another_user_is_refused(folder: Folder, process: Process) -> None:
    """... and not filled with files that no life could go on with."""
    process.module("claim").os.geteuid = lambda: 12345
    with pytest.raises(OSError, match=rf"this mount gives new files to another user: '{k_path(folder)}'"):
        claim_in(process, folder)
    assert list(folder.path.iterdir()) == []
    assert process.open_descriptors == 0


def test_an_unreadable_file_is_passed_over_at_a_start(folder: Folder, process: Process) -> None:
    """A bad sector must not keep a source from counting."""
    k_path(folder).write_bytes(DEAD)
    process.always["pread"] = _at(1, fail(errno.EIO))
    assert k_of(claim_in(process, folder)) == "-1.jsonl"
    assert k_path(folder).read_bytes() == DEAD


def test_a_file_that_cannot_be_opened_is_passed_over_at_a_start(folder: Folder, process: Process) -> None:
    """... and not in healing, for the same reason as below."""
    k_path(folder).write_bytes(DEAD)
    first_is_there = 2  # the open that makes a file finds one, and the next opens it
    process.always["open"] = _at(first_is_there, fail(errno.EIO))
    assert k_of(claim_in(process, folder)) == "-1.jsonl"
    process.always["open"] = _at(first_is_there, fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        claim_in(process, folder, only_file_id="dead", was_locked=True)


def _at(number: int, action: Action) -> Action:
    """Do this at the so-manieth call, and let all others through."""
    calls = count(1)

    def chosen(real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return action(real, arguments) if next(calls) == number else real(*arguments)

    return chosen


def test_an_unreadable_file_is_not_passed_over_in_healing(folder: Folder, process: Process) -> None:
    """It may hold our own id, and there would be two of it."""
    k_path(folder).write_bytes(DEAD)
    process.always["pread"] = fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        claim_in(process, folder, only_file_id="dead", was_locked=True)
    assert process.open_descriptors == 0


def test_healing_takes_our_own_file_or_a_new_one(folder: Folder) -> None:
    """Never the one that another source of the same labels left."""
    k_path(folder, 0).write_bytes(encode_file(FileLine("other", LABELS)))
    k_path(folder, 1).write_bytes(DEAD)
    assert k_of(claim(folder, LABELS, only_file_id="dead")) == "-1.jsonl"
    assert k_of(claim(folder, LABELS, only_file_id="lost")) == "-2.jsonl"
    assert k_of(claim(folder, LABELS)) == "-0.jsonl"


@pytest.mark.parametrize("put", OBSTACLES.values(), ids=OBSTACLES)
def test_healing_passes_over_what_cannot_be_our_own(folder: Folder, put: Callable[[Path], object]) -> None:
    """The same that a start passes over."""
    put(k_path(folder))
    assert k_of(claim(folder, LABELS, only_file_id="lost")) == "-1.jsonl"


def test_healing_waits_where_locks_have_gone(folder: Folder, process: Process) -> None:
    """A file of ours may be at the path, and cannot be told from a held one."""
    process.always["flock"] = fail(errno.ENOLCK)
    with pytest.raises(OSError, match="No locks available"):
        claim_in(process, folder, only_file_id="lost", was_locked=True)
    assert not claim_in(process, folder, only_file_id="lost", was_locked=False).file.locked


def no_folder(path: Path) -> None:
    path.rmdir()


def a_file_for_a_folder(path: Path) -> None:
    path.rmdir()
    path.touch()


@pytest.mark.parametrize("make", [no_folder, a_file_for_a_folder], ids=lambda make: make.__name__)
def test_trouble_with_the_folder_is_an_error_and_no_endless_search(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """Found at the first k."""
    (tmp_path / "journal").mkdir()
    make(tmp_path / "journal")
    with pytest.raises(OSError, match=r"-0\.jsonl"):
        claim(Folder(tmp_path / "journal"), LABELS)


@only_root
def test_a_folder_that_may_not_be_written_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not mistaken for a file of somebody else."""
    place = tmp_path_factory.mktemp("closed")
    here = os.open(place, os.O_RDONLY)
    place.chmod(0o555)

    def attempt() -> str:
        os.fchdir(here)
        try:
            claim(Folder(Path()), LABELS)
        except OSError as error:
            return str(error.strerror)
        return "claimed"

    assert in_child(attempt, User(40_000, 40_000)) == "Permission denied"
    os.close(here)


def test_nothing_stays_open_of_what_was_passed_over(folder: Folder) -> None:
    """One descriptor for one claim, whatever stood in the way."""
    before = set(descriptors._open)
    for k, put in enumerate(OBSTACLES.values()):
        if put is not a_held_file:
            put(k_path(folder, k))
    k_path(folder, 0).unlink(missing_ok=True)
    k_path(folder, 0).mkdir()
    found = claim(folder, LABELS)
    assert set(descriptors._open) - before == {found.file.descriptor}


def test_a_life_goes_on_with_its_own_kind_only(journal: Path) -> None:
    """Two ranks on one host never meet in one file."""
    for rank in ("0", "1"):
        with Engine(journal, rank=rank) as engine:
            engine.corrupt("a")
    assert len(list(journal.glob("*-0.jsonl"))) == 2


def test_a_claim_knows_what_it_holds(folder: Folder) -> None:
    """Device and inode of the file at the path."""
    file = claim(folder, LABELS).file
    status = k_path(folder).stat()
    assert file.identity == (status.st_dev, status.st_ino)
