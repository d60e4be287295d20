"""Where the journal lives: its modes, whom it opens to, and what it refuses, in these words."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanwatch.journal import folder as folder_module
from nanwatch.journal.folder import Folder, FolderError, default_folder, is_at
from nanwatch.journal.totals import Totals
from nanwatch.journal.writer import JournalWriter
from tests.engine import LABELS, Engine, start_line
from tests.journal.forked import User, in_child, only_root, refusal

GROUP = 40_001
SOMEBODY = User(uid=40_000, gid=40_000, groups=(GROUP,))
KNOB = "(NANWATCH_JOURNAL names the folder)"


@pytest.fixture
def place() -> Iterator[Path]:
    """A place that every user may pass through."""
    path = Path(tempfile.mkdtemp(prefix="nanwatch-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=[0o077, 0o022, 0o000], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def files(folder: Path) -> list[Path]:
    return list(folder.glob("*.jsonl"))


def own(path: Path, uid: int, gid: int, bits: int) -> Path:
    path.mkdir(exist_ok=True)
    os.chown(path, uid, gid)
    path.chmod(bits)
    return path


@pytest.mark.usefixtures("umask")
def test_only_the_owner_may_look_in(tmp_path: Path) -> None:
    """0700 and 0600, whatever the umask; also the file that a renewal makes."""
    with Engine(tmp_path / "journal") as engine:
        assert (mode(tmp_path / "journal"), [*map(mode, files(tmp_path / "journal"))]) == (0o700, [0o600])
        os.truncate(files(tmp_path / "journal")[0], 10)
        engine.write()
        assert [*map(mode, files(tmp_path / "journal"))] == [0o600]


@only_root
@pytest.mark.usefixtures("umask")
def test_a_group_may_read_where_it_is_asked_for(place: Path) -> None:
    """2770 and 0640, and both are the group's, whatever the umask."""

    def write() -> None:
        folder = Folder(place / "journal", str(GROUP))
        folder.prepare()
        _begin(folder)
        _begin(folder)  # goes on with the file, through a renewal

    own(place, SOMEBODY.uid, SOMEBODY.gid, 0o755)
    assert refusal(write, SOMEBODY) is None
    assert mode(place / "journal") == 0o2770
    (file,) = files(place / "journal")
    assert mode(file) == 0o640
    assert {(place / "journal").stat().st_gid, file.stat().st_gid} == {GROUP}
    reader = User(uid=40_002, gid=40_002, groups=(GROUP,))

    def first_bytes() -> str:
        return file.read_bytes()[:15].decode()

    assert in_child(first_bytes, reader) == '{"kind":"file",'


@only_root
def test_a_file_from_before_the_group_is_opened_to_it(place: Path) -> None:
    """A folder and a file that were the owner's alone, and NANWATCH_JOURNAL_GROUP set later."""
    own(place, SOMEBODY.uid, SOMEBODY.gid, 0o755)
    for group in (None, str(GROUP)):
        assert refusal(_beginning(Folder(place / "journal", group)), SOMEBODY) is None
    (file,) = files(place / "journal")
    assert (mode(file), file.stat().st_gid) == (0o640, GROUP)


@only_root
def test_without_the_group_a_file_is_closed_again(place: Path) -> None:
    """The group was taken back: the file is the owner's alone."""
    own(place, SOMEBODY.uid, SOMEBODY.gid, 0o755)
    for group in (str(GROUP), None):
        assert refusal(_beginning(Folder(place / "journal", group)), SOMEBODY) is None
    assert [*map(mode, files(place / "journal"))] == [0o600]


@only_root
@pytest.mark.parametrize("group", [None, str(GROUP)])
def test_an_empty_dir_of_kubernetes_is_accepted(place: Path, group: str | None) -> None:
    """Root's, with our group, 2777: a mount that an fsGroup made ours; its mode is left alone."""
    folder = own(place / "journal", 0, GROUP, 0o2777)
    assert refusal(lambda: _begin(Folder(folder, group)), SOMEBODY) is None
    assert (mode(folder), folder.stat().st_uid) == (0o2777, 0)
    (file,) = files(folder)
    assert (file.stat().st_uid, file.stat().st_gid) == (SOMEBODY.uid, GROUP)


@only_root
def test_root_takes_an_open_mount_of_its_own(place: Path) -> None:
    """A container that runs as root, and an emptyDir without an fsGroup: root's, 0777."""
    folder = own(place / "journal", 0, 0, 0o777)
    assert refusal(lambda: _begin(Folder(folder))) is None


def _beginning(folder: Folder) -> Callable[[], None]:
    return lambda: _begin(folder)


def _begin(folder: Folder) -> None:
    """Write as one life does; a second one goes on with the file of the first."""
    writer = JournalWriter(folder, LABELS, start_line())
    writer.commit(Totals())
    writer.close()


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert refusal(Folder(tmp_path / "link").prepare) == (
        f"journal folder {tmp_path}/link is a symbolic link; name the folder that it points to {KNOB}"
    )


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (
        refusal(Folder(tmp_path / "file").prepare) == f"journal folder {tmp_path}/file is not a folder {KNOB}"
    )


def test_a_folder_without_a_parent_is_refused(tmp_path: Path) -> None:
    assert refusal(Folder(tmp_path / "no" / "journal").prepare) == (
        f"journal folder {tmp_path}/no/journal cannot be made: No such file or directory {KNOB}"
    )


def test_an_unknown_group_is_refused(tmp_path: Path) -> None:
    assert refusal(Folder(tmp_path / "journal", "no-such-group").prepare) == (
        f"journal folder {tmp_path}/journal cannot be opened to NANWATCH_JOURNAL_GROUP=no-such-group: "
        f"there is no such group {KNOB}"
    )


@pytest.mark.parametrize("number", [(1 << 32) - 1, 1 << 40])
def test_a_number_that_is_no_group_is_refused(tmp_path: Path, number: int) -> None:
    """Among them the one that chown would take for "leave the group as it is"."""
    with pytest.raises(FolderError, match=f"NANWATCH_JOURNAL_GROUP={number}: there is no such group"):
        Folder(tmp_path / "journal", str(number)).prepare()


@only_root
def test_another_users_folder_is_refused(place: Path) -> None:
    own(place / "journal", 40_009, 40_009, 0o777)
    assert refusal(Folder(place / "journal").prepare, SOMEBODY) == (
        f"journal folder {place}/journal belongs to uid 40009 and this process runs as uid 40000; "
        f"it takes a folder of its own, or root's whose group it is in {KNOB}"
    )


@only_root
@pytest.mark.parametrize(
    ("gid", "bits"), [(0, 0o777), (GROUP, 0o2755)], ids=["not our group", "closed to it"]
)
def test_roots_folder_that_is_not_shared_with_us_is_refused(place: Path, gid: int, bits: int) -> None:
    own(place / "journal", 0, gid, bits)
    assert refusal(Folder(place / "journal").prepare, SOMEBODY) == (
        f"journal folder {place}/journal belongs to root (uid 0) and this process runs as uid 40000; "
        f"it takes a folder of its own, or root's whose group it is in {KNOB}"
    )


@only_root
def test_a_folder_that_everyone_may_write_to_is_refused(place: Path) -> None:
    own(place / "journal", SOMEBODY.uid, SOMEBODY.gid, 0o777)
    assert refusal(Folder(place / "journal").prepare, SOMEBODY) == (
        f"journal folder {place}/journal can be written by everyone (mode 0777); chmod o-w {KNOB}"
    )


@only_root
def test_a_folder_that_may_not_be_made_is_refused(place: Path) -> None:
    assert refusal(Folder(place / "journal").prepare, SOMEBODY) == (
        f"journal folder {place}/journal cannot be made: Permission denied {KNOB}"
    )


@only_root
def test_a_group_that_we_are_not_in_is_refused(place: Path) -> None:
    own(place, SOMEBODY.uid, SOMEBODY.gid, 0o755)
    assert refusal(Folder(place / "journal", "40009").prepare, SOMEBODY) == (
        f"journal folder {place}/journal cannot be opened to NANWATCH_JOURNAL_GROUP=40009: "
        f"Operation not permitted {KNOB}"
    )


@only_root
def test_a_folder_behind_a_closed_door_is_refused(place: Path) -> None:
    own(place / "closed", 0, 0, 0o700)
    assert refusal(Folder(place / "closed" / "journal").prepare, SOMEBODY) == (
        f"journal folder {place}/closed/journal cannot be made: Permission denied {KNOB}"
    )


def test_a_refusal_changes_nothing(tmp_path: Path) -> None:
    """Neither the modes nor the contents of what was refused."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "file").chmod(0o604)
    with pytest.raises(FolderError):
        Folder(tmp_path / "file", str(os.getgid())).prepare()
    assert ((tmp_path / "file").read_text(), mode(tmp_path / "file")) == ("mine", 0o604)


def test_an_existing_folder_of_ours_keeps_its_mode(tmp_path: Path) -> None:
    """Somebody made it for us as they wanted it."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal").chmod(0o755)
    Folder(tmp_path / "journal").prepare()
    assert mode(tmp_path / "journal") == 0o755


@pytest.fixture
def run_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folder_module, "SHARED_RUN_FOLDER", place / "run")
    return place / "run"


def test_the_default_is_the_run_folder_where_it_is_there(run_folder: Path) -> None:
    run_folder.mkdir(0o700)
    assert default_folder(writing=True) == default_folder(writing=False) == run_folder


def test_the_default_is_a_folder_of_ones_own_where_it_is_not(run_folder: Path) -> None:
    assert not run_folder.exists()
    for writing in (True, False):
        assert default_folder(writing=writing) == Path(f"/tmp/nanwatch-{os.geteuid()}")  # noqa: S108


def test_the_default_is_never_a_folder_that_would_be_refused(run_folder: Path, place: Path) -> None:
    """A link in its place: the writer refuses it, so it is no default."""
    (place / "real").mkdir()
    run_folder.symlink_to(place / "real")
    assert default_folder(writing=True) != run_folder


@only_root
def test_the_default_depends_on_what_this_process_may_do(run_folder: Path) -> None:
    """Root's run folder, open to read: a sidecar of another user reads there, an engine writes elsewhere."""
    own(run_folder, 0, 0, 0o755)

    def chosen() -> list[str]:
        return [str(default_folder(writing=writing)) for writing in (True, False)]

    assert in_child(chosen, SOMEBODY) == ["/tmp/nanwatch-40000", str(run_folder)]  # noqa: S108
    own(run_folder, 0, GROUP, 0o2770)
    assert in_child(chosen, SOMEBODY) == [str(run_folder)] * 2
    own(run_folder, 40_009, 40_009, 0o777)  # another user's is never written to
    assert in_child(chosen, SOMEBODY) == ["/tmp/nanwatch-40000", str(run_folder)]  # noqa: S108
    own(run_folder, 0, 0, 0o700)
    assert in_child(chosen, SOMEBODY) == ["/tmp/nanwatch-40000"] * 2  # noqa: S108


def test_is_at_tells_a_file_from_its_copy(tmp_path: Path) -> None:
    """The same inode, not the same content; nothing there is not it either."""
    path = tmp_path / "file"
    path.write_text("same")
    descriptor = os.open(path, os.O_RDONLY)
    assert is_at(path, descriptor)
    path.rename(tmp_path / "moved")
    assert not is_at(path, descriptor)
    path.write_text("same")
    assert not is_at(path, descriptor)
    os.close(descriptor)
