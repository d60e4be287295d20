"""Where the journal lives, and who may read it.

The folder is 0700 and its files 0600; with NANWATCH_JOURNAL_GROUP 2770 and 0640. An existing
folder is taken when it is ours and closed to others, or when root owns it and its group is ours
(a Kubernetes emptyDir with an fsGroup is root's, mode 2777). A folder that is somebody else's is
refused in words: who may write there could plant or remove files under us.
"""

import grp
import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SHARED_RUN_FOLDER = Path("/run/nanwatch")
SUFFIX = ".jsonl"
_NO_GROUP = (1 << 32) - 1  # chown takes it for "leave the group as it is"
_GROUP_CAN_READ = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP  # new files get the group too


class FolderError(OSError):
    """The journal's folder cannot be used; the message says why and which knob helps."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a journal and the group that may read it (None: only its owner)."""

    path: Path
    group: str | None = None

    @property
    def file_mode(self) -> int:
        """Mode of the files in it."""
        return 0o600 if self.group is None else 0o640

    def prepare(self) -> None:
        """Make the folder if it is missing and check that it may be used.

        Raises:
            FolderError: it cannot be made, is no folder, or belongs to somebody else.
        """
        with suppress(FileExistsError):
            self._make()
        found = self._lstat()
        _refuse_unless_usable(self.path, found)
        if self.group is not None:
            self._open_to_group(found)

    def give_rights(self, descriptor: int) -> None:
        """Give an open file of ours this folder's mode and group.

        The umask may have taken a bit away, or the file is older than NANWATCH_JOURNAL_GROUP.

        Raises:
            OSError: the mode cannot be given.
        """
        found = os.fstat(descriptor)
        if self.group is not None and found.st_gid != (gid := _gid(self.path, self.group)):
            with suppress(PermissionError):  # then the reader cannot read it, and says so
                os.fchown(descriptor, -1, gid)
        if stat.S_IMODE(found.st_mode) != self.file_mode:
            os.fchmod(descriptor, self.file_mode)

    def _make(self) -> None:
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            raise
        except OSError as error:
            raise _refusal(self.path, f"cannot be made: {error.strerror}") from error

    def _lstat(self) -> os.stat_result:
        try:
            return os.lstat(self.path)
        except OSError as error:
            raise _refusal(self.path, f"cannot be looked at: {error.strerror}") from error

    def _open_to_group(self, found: os.stat_result) -> None:
        gid = _gid(self.path, self.group or "")
        if found.st_gid == gid and found.st_mode & _GROUP_CAN_READ == _GROUP_CAN_READ:
            return
        try:
            os.chown(self.path, -1, gid)
            os.chmod(self.path, 0o2770)  # noqa: S103  the group is the one that was asked for
        except OSError as error:
            reason = f"cannot be opened to NANWATCH_JOURNAL_GROUP={self.group}: {error.strerror}"
            raise _refusal(self.path, reason) from error


def default_folder(*, writing: bool) -> Path:
    """Return /run/nanwatch where that is a folder this process can use, else one of its own in /tmp."""
    if _is_usable(SHARED_RUN_FOLDER, writing=writing):
        return SHARED_RUN_FOLDER
    return Path(f"/tmp/nanwatch-{os.geteuid()}")  # noqa: S108  refused unless ours


def is_at(path: Path, descriptor: int) -> bool:
    """Say whether the file at `path` is the one that `descriptor` holds open."""
    try:
        at_path = os.lstat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (at_path.st_dev, at_path.st_ino) == (held.st_dev, held.st_ino)


def _is_usable(path: Path, *, writing: bool) -> bool:
    try:
        found = os.lstat(path)
        if writing:
            _refuse_unless_usable(path, found)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and os.access(path, os.X_OK | (os.W_OK if writing else os.R_OK))


def _refuse_unless_usable(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _refusal(path, "is a symbolic link; name the folder that it points to")
    if not stat.S_ISDIR(found.st_mode):
        raise _refusal(path, "is not a folder")
    ours = found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH
    groups = {os.getegid(), *os.getgroups()}
    shared_mount = found.st_uid == 0 and found.st_gid in groups and found.st_mode & stat.S_IWGRP
    if ours or shared_mount:
        return
    if found.st_uid == os.geteuid():
        raise _refusal(
            path, f"can be written by everyone (mode {stat.S_IMODE(found.st_mode):04o}); chmod o-w"
        )
    raise _refusal(
        path,
        f"belongs to {_user(found.st_uid)} and this process runs as {_user(os.geteuid())}; "
        "it takes a folder of its own, or root's whose group it is in",
    )


def _gid(path: Path, group: str) -> int:
    if group.isdecimal() and int(group) < _NO_GROUP:
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        reason = f"cannot be opened to NANWATCH_JOURNAL_GROUP={group}: there is no such group"
        raise _refusal(path, reason) from None


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _refusal(path: Path, reason: str) -> FolderError:
    return FolderError(f"journal folder {path} {reason} (NANWATCH_JOURNAL names the folder)")
