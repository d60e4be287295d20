"""The one writer of a journal file: appends whole lines, renews and heals the file.

Everything that is written here is also in memory (base, own totals, kept requests), so a file
that was cut, deleted or replaced is made anew from memory under the same file id, and no reader
sees a total fall. A line is one write(2); what write returned for survives a SIGKILL.

    base    totals that earlier lives left in the file that is gone on with
    own     totals of this life; a line holds base + own
    kept    encoded entries of corrupted requests, joined and never encoded anew
    unsaved keys of entries that no whole line holds yet
"""

import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from . import descriptors
from .claim import OPEN_FLAGS, Claim, claim, lock
from .clock import boot_ns
from .folder import Folder, is_at
from .kept import Kept, Key
from .line import (
    CorruptedRequest,
    FileLine,
    Labels,
    ReportLine,
    StartLine,
    Totals,
    encode_corrupted,
    encode_file,
    encode_report,
    encode_start,
)

RENEW_PAST_BYTES = 1_000_000
RENEW_RETRY_SECONDS = 5.0


class ShortWriteError(OSError):
    """A write took only a part of the line: the disk or the quota is full."""


class JournalWriter:
    """Appends what one source counted to the file that it holds for life.

    Not for several threads at once: the recorder's thread is the one that calls it.
    """

    def __init__(
        self,
        folder: Folder,
        labels: Labels,
        start: StartLine,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._labels, self._start = folder, labels, start
        self._monotonic = monotonic
        self._claim: Claim | None = None
        self._file = FileLine(secrets.token_hex(16), labels)
        self._opened_before = False
        self._size = 0  # bytes of whole lines in the file
        self._snapshot_bytes = 0
        self._renew_not_before = 0.0
        self._base = Totals()
        self._own = Totals()
        self._last_step_seconds = 0.0
        self._kept: Kept[bytes] = Kept()
        self._unsaved: dict[Key, None] = {}

    @property
    def path(self) -> Path | None:
        """The file held now, None while there is none."""
        return self._claim.path if self._claim else None

    @property
    def unsaved(self) -> int:
        """Corrupted requests that are in memory only."""
        return len(self._unsaved)

    def put(self, request: CorruptedRequest) -> None:
        """Keep a corrupted request, new or changed, for the next commit."""
        self._kept.put(request.key, encode_corrupted(request), finished=request.finished)
        self._unsaved[request.key] = None
        if len(self._unsaved) > 2 * len(self._kept):  # pruned meanwhile: bounded like what is kept
            self._unsaved = {key: None for key in self._unsaved if key in self._kept}

    def commit(self, own: Totals, last_step_seconds: float = 0.0) -> None:
        """Write one line with the totals of this life so far and all that was put since the last.

        `last_step_seconds` is the wall clock of the last step, 0 before the first.

        Raises:
            OSError: nothing of it counts as written; all of it is kept for the next commit.
        """
        self._own, self._last_step_seconds = own.copy(), last_step_seconds
        if self._claim is None:
            self._open()
            return
        if not is_at(self._claim.path, self._claim.descriptor):
            self._release()
            self._open()
            return
        if os.fstat(self._claim.descriptor).st_size != self._size:
            self._renew()
            return
        entries = [self._kept[key] for key in self._unsaved if key in self._kept]
        self._append(self._report(self._base, entries))
        self._unsaved.clear()
        self._renew_if_due()

    def close(self) -> None:
        """Let the file go: its lock becomes free, which tells readers that this life has ended."""
        self._release()

    def _open(self) -> None:
        """Claim a file and write this life's start into it."""
        self._folder.prepare()
        found = claim(
            self._folder, self._labels, only_file_id=self._file.file if self._opened_before else None
        )
        self._claim, self._size = found, found.size
        try:
            if self._opened_before or found.fold.file is None:
                self._append(self._whole_file())
                self._unsaved.clear()
            else:
                self._go_on_from(found)
        except BaseException:
            self._release()
            raise
        self._opened_before = True

    def _go_on_from(self, found: Claim) -> None:
        """Append a start line to a dead file, whose totals and requests become ours."""
        assert found.fold.file is not None  # noqa: S101  the caller asked; here for the type checker
        base = found.fold.totals
        start = replace(self._start, totals=base)
        self._append(encode_start(start) + self._report(base, self._kept.values()))
        kept: Kept[bytes] = Kept()
        for request in found.fold.corrupted.values():
            kept.put(request.key, encode_corrupted(request), finished=True)
        for key, entry in self._kept.items():
            kept.put(key, entry, finished=False)
        self._file, self._start, self._base, self._kept = found.fold.file, start, base, kept
        self._unsaved.clear()

    def _append(self, data: bytes) -> None:
        """Write whole lines at the end, in one write(2); a short write is cut back."""
        assert self._claim is not None  # noqa: S101  callers hold a file; here for the type checker
        descriptor = self._claim.descriptor
        try:
            _write_whole(descriptor, data)
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise
        self._size += len(data)

    def _renew_if_due(self) -> None:
        due = self._size > RENEW_PAST_BYTES and self._size > 2 * self._snapshot_bytes
        if not due or self._monotonic() < self._renew_not_before:
            return
        try:
            self._renew()
        except OSError:
            self._renew_not_before = self._monotonic() + RENEW_RETRY_SECONDS

    def _renew(self) -> None:
        """Write what is in memory into a new file and rename it over the old one.

        The new file is locked before it gets the name, and the old one closed after: at no time
        is there a file at the path that a starter could take.
        """
        assert self._claim is not None  # noqa: S101  callers hold a file; here for the type checker
        old, temporary = self._claim, self._claim.path.with_suffix(".tmp")
        self._kept.prune(self._start.life)
        data = self._whole_file()
        descriptor = _new_file(temporary, self._folder.file_mode)
        try:
            if old.locked and not lock(descriptor):
                msg = f"{temporary} is locked by somebody else"
                raise OSError(msg)  # noqa: TRY301  the same clean-up serves every failure
            _write_whole(descriptor, data)
            os.rename(temporary, old.path)
        except BaseException:
            descriptors.close(descriptor)
            _unlink_if_there(temporary)
            raise
        self._claim = replace(old, descriptor=descriptor)
        self._size = self._snapshot_bytes = len(data)
        self._unsaved.clear()
        descriptors.close(old.descriptor)

    def _whole_file(self) -> bytes:
        """Everything in memory as a file's content: first line, start line, one report."""
        file = self._file if self._claim is None else replace(self._file, locked=self._claim.locked)
        report = self._report(self._base, self._kept.values())
        return b"".join((encode_file(file), encode_start(self._start), report))

    def _report(self, base: Totals, entries: Iterable[bytes]) -> bytes:
        line = ReportLine(boot_ns(), time.time(), base.plus(self._own), self._last_step_seconds)
        return encode_report(line, entries)

    def _release(self) -> None:
        if self._claim is not None:
            descriptors.close(self._claim.descriptor)
            self._claim = None


def _write_whole(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    if written != len(data):
        msg = f"wrote {written} of {len(data)} bytes: the disk or the quota is full"
        raise ShortWriteError(msg)


def _new_file(path: Path, mode: int) -> int:
    _unlink_if_there(path)
    descriptor = descriptors.open_file(path, OPEN_FLAGS | os.O_EXCL, mode)
    os.fchmod(descriptor, stat.S_IMODE(mode))
    return descriptor


def _unlink_if_there(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
