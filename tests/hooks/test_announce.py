"""The warning in the engine's log."""

import pytest

from nanwatch.announce import EVERY_SECONDS, Announcer
from nanwatch.journal.line import CorruptedRequest


def bad(*names: str) -> list[CorruptedRequest]:
    return [CorruptedRequest("life", name, 0, 4, 0.0, 0, "decode", 1, 1) for name in names]


def test_it_speaks_at_once_then_at_most_every_ten_seconds_and_tells_how_many_came_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    announcer = Announcer(lambda: now)
    announcer.announce(bad("a"))
    for now in (1.0, 2.0, EVERY_SECONDS - 0.1):  # noqa: B007  the announcer's clock reads it
        announcer.announce(bad("b", "c"))
    now = EVERY_SECONDS
    announcer.announce(bad("d"))
    assert [r.getMessage() for r in caplog.records] == [
        "NaN in the logits of 'a' (step 4, phase decode)",
        "NaN in the logits of 'd' (step 4, phase decode); 6 other requests since the last warning",
    ]


def test_a_step_that_took_many_names_the_first_and_counts_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    Announcer(lambda: 0.0).announce(bad(*(f"r{i}" for i in range(20))))
    assert "'r0', 'r1'" in caplog.text
    assert "'r7' and 12 more" in caplog.text
