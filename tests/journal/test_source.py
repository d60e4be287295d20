"""What the reader makes of the lines of one source."""

from collections.abc import Sequence
from typing import Any

import pytest

from nanwatch.journal.kept import NEWEST
from nanwatch.journal.line import CorruptedRequest, ReportLine, StartLine
from nanwatch.journal.source import FRESH_SECONDS, HISTORY_SECONDS, Source
from nanwatch.journal.totals import Totals
from tests.engine import LABELS, corrupted, start_line

OFFSET = -1000.0  # boot second 1000 is second 0 of the reader's clock


def boot_ns(at: float) -> int:
    return round((at - OFFSET) * 1e9)


def begin(life: str, at: float, **changed: Any) -> StartLine:
    return start_line(life, clock="boot-1", boot_ns=boot_ns(at), **changed)


def seen(request_id: str, at: float, **changed: Any) -> CorruptedRequest:
    return corrupted(request_id, **({"first_seen_boot_ns": boot_ns(at)} | changed))


def report(at: float, requests: int, bad: int = 0, listed: Sequence[CorruptedRequest] = ()) -> ReportLine:
    totals = Totals(requests=requests, corrupted_requests=bad)
    return ReportLine(boot_ns(at), 0.0, totals, last_step_seconds=at, corrupted=tuple(listed))


def source(*lines: StartLine | ReportLine) -> Source:
    made = Source("file-1", LABELS)
    for line in lines:
        made.take(line, OFFSET)
    return made


def test_totals_of_an_older_line_lower_nothing() -> None:
    """Each cell stays at its greatest, whatever order lines are read in."""
    found = source(begin("life-1", 0), report(2, 9, 3), report(1, 4, 1))
    assert (found.totals.requests, found.totals.corrupted_requests) == (9, 3)
    assert (found.requests, found.corrupted_requests) == (9, 3)


def test_an_older_line_does_not_turn_the_last_step_back() -> None:
    """The time of the last step is that of the newest line, not of the line that was read last."""
    assert source(begin("life-1", 0), report(2, 9), report(1, 4)).last_step_seconds == 2


def test_only_lives_that_count_are_summed() -> None:
    """A file that was continued by an annotating rank keeps what its counting life had counted."""
    counting = source(begin("life-1", 0), report(1, 10, 2))
    for line in (begin("life-2", 2, counting=False, totals=counting.totals.copy()), report(3, 15, 4)):
        counting.take(line, OFFSET)
    assert (counting.requests, counting.corrupted_requests) == (10, 2)
    assert (counting.totals.requests, counting.totals.corrupted_requests) == (15, 4)


def test_what_a_counting_life_wrote_last_is_counted_from_the_next_start_line() -> None:
    """Totals that only the next life's start line tells belong to the life before it."""
    found = source(begin("life-1", 0), report(1, 10, 2))
    found.take(begin("life-2", 2, counting=False, totals=Totals(requests=12, corrupted_requests=3)), OFFSET)
    assert (found.requests, found.corrupted_requests) == (12, 3)


def test_the_totals_of_a_renewed_file_are_its_current_lifes() -> None:
    """Of lives whose lines are gone it is taken that they counted as the one that is left does."""
    base = Totals(requests=7, corrupted_requests=1)
    assert source(begin("life-3", 0, totals=base)).corrupted_requests == 1
    assert source(begin("life-3", 0, totals=base, counting=False)).corrupted_requests == 0


@pytest.mark.parametrize(
    ("held", "age", "expected"),
    [
        (True, FRESH_SECONDS, (True, True)),
        (True, FRESH_SECONDS + 0.1, (True, False)),  # a process that hangs
        (False, 0.0, (False, False)),
        (None, FRESH_SECONDS, (True, True)),  # no locks here: the heartbeat alone tells
        (None, FRESH_SECONDS + 0.1, (False, False)),
    ],
)
def test_alive_takes_the_lock_and_active_the_heartbeat_too(
    *, held: bool | None, age: float, expected: tuple[bool, bool]
) -> None:
    """A held lock without growth is alive and not active; a free lock is dead at once."""
    found = source(begin("life-1", 0), report(5, 1))
    found.observe_lock(5 + age, held=held)
    assert (found.held, found.active) == expected


def test_the_dead_are_dead_since_their_last_line() -> None:
    """How long a source has been dead counts from its last line, and not at all while it lives."""
    found = source(begin("life-1", 0), report(5, 1))
    found.observe_lock(605, held=True)
    assert found.dead_seconds(605) == 0
    found.observe_lock(605, held=False)
    assert found.dead_seconds(605) == 600


def test_corrupted_requests_are_dated_by_their_first_nan() -> None:
    """A window counts a request by when its first NaN was seen, not by when its line came."""
    found = source(begin("life-1", 0), report(10, 5, 2, [seen("a", 3), seen("b", 9)]))
    assert [found.corrupted_since(at) for at in (0, 2.9, 3.1, 8.9, 9.1)] == [2, 2, 1, 1, 0]


def test_a_later_entry_of_the_same_request_replaces_the_earlier_one() -> None:
    """Values that grew and an end that came are seen, and the request stays one."""
    first, later = seen("a", 1, values=2), seen("a", 1, values=8, finished=True)
    found = source(begin("life-1", 0), report(1, 1, 1, [first]), report(2, 1, 1, [later]))
    assert list(found.corrupted.values()) == [later]
    assert found.corrupted_since(0) == 1


def test_requests_of_earlier_lives_are_outside_every_window() -> None:
    """An engine that was started again after NaN starts with a clean bill of health."""
    found = source(begin("life-1", 0), report(1, 9, 1, [seen("a", 1)]))
    found.take(begin("life-2", 2, totals=found.totals.copy()), OFFSET)
    assert found.corrupted_since(float("-inf")) == 0
    assert found.requests_since(float("-inf")) == 0
    assert found.seen_at(seen("a", 1)) == float("-inf")


def test_requests_between_two_lines_are_interpolated() -> None:
    """Ten requests in ten seconds are four in the last four."""
    found = source(begin("life-1", 0), report(10, 10))
    assert found.requests_since(6) == pytest.approx(4)
    assert found.requests_since(-5) == 10
    assert found.requests_since(11) == 0


def test_requests_are_told_apart_by_time_even_if_lines_come_fast() -> None:
    """Lines closer together than the samples are merged, and the newest one is always there."""
    found = source(begin("life-1", 0), *(report(i / 100, i) for i in range(1, 1001)))
    assert found.requests_since(5) == pytest.approx(500, rel=0.01)
    assert found.totals.requests == 1000
    assert len(found._history) < 20


def test_history_is_bounded_and_still_knows_a_whole_hour() -> None:
    """After a day of lines an hour can be looked back over, and not much more is kept."""
    found = source(begin("life-1", 0), *(report(at, at) for at in range(0, 86_400, 10)))
    newest = 86_390
    assert found.requests_since(newest - HISTORY_SECONDS) == pytest.approx(HISTORY_SECONDS)
    assert len(found._history) < 400


def test_a_file_that_is_read_again_changes_no_history() -> None:
    """Reading the same lines twice leaves windows as they were."""
    start, *reports = begin("life-1", 0), report(5, 10, 1, [seen("a", 5)]), report(10, 20, 1)
    found = source(start, *reports, start, *reports)
    assert found.requests_since(5) == pytest.approx(10)
    assert found.corrupted_since(0) == 1
    assert found.start == start


def test_an_older_start_line_does_not_bring_its_life_back() -> None:
    """A copy of an old file, read after the new one, does not make the old life the current one."""
    new = begin("life-2", 10)
    found = source(begin("life-1", 0), new, begin("life-1", 0))
    assert found.start == new


def test_a_life_under_another_boot_is_newer_however_small_its_boot_time() -> None:
    """After a reboot boot times begin at zero, and the life that is read last is the current one."""
    rebooted = start_line("life-2", clock="boot-2", boot_ns=7)
    assert source(begin("life-1", 500), rebooted).start == rebooted


def test_a_storm_beyond_what_is_kept_is_counted_from_the_totals() -> None:
    """Once entries are forgotten, a window is counted by interpolation and not by what is left."""
    many = 3 * NEWEST
    found = source(begin("life-1", 0))
    for first in range(0, many, NEWEST):
        listed = [seen(f"r{i}", 1, finished=True) for i in range(first, first + NEWEST)]
        found.take(report(1, first + NEWEST, first + NEWEST, listed), OFFSET)
    assert len(found.corrupted) < many
    assert found.corrupted_since(0) == many
    assert found.corrupted_since(1) == 0


def test_lines_without_a_start_are_counted_and_belong_to_no_life() -> None:
    """Where the start line was damaged, totals still count and windows stay empty."""
    found = source(report(1, 4, 1, [seen("a", 1)]))
    assert (found.requests, found.corrupted_requests) == (4, 1)
    assert found.corrupted_since(0) == 0
