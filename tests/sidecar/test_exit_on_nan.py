"""When a sidecar ends because of NaN."""

import pytest

from nanwatch_sidecar.exit_on_nan import SECONDS, ExitOnNan


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ending(clock: Clock) -> ExitOnNan:
    return ExitOnNan(clock)


def state(ending: ExitOnNan) -> tuple[bool, int]:
    return ending.due, ending.status


def test_what_was_there_at_the_start_is_no_reason(ending: ExitOnNan, clock: Clock) -> None:
    """Corrupted requests from before the sidecar's start do not end it, nor do scrapes of them."""
    for _ in range(5):
        ending.polled(7)
        ending.scraped()
        clock.now += SECONDS
    assert state(ending) == (False, 0)


def test_two_scrapes_after_the_first_corrupted_request_it_is_time(ending: ExitOnNan) -> None:
    """Prometheus has seen the counter move, twice; scrapes from before do not count."""
    ending.polled(0)
    ending.scraped()
    ending.scraped()
    ending.polled(1)
    ending.scraped()
    assert state(ending) == (False, 3)
    ending.scraped()
    assert state(ending) == (True, 3)


def test_without_scrapes_it_is_time_after_90_seconds(ending: ExitOnNan, clock: Clock) -> None:
    """Where nobody scrapes it ends all the same; later corrupted requests put nothing off."""
    ending.polled(0)
    ending.polled(1)
    clock.now = 89.0
    ending.polled(2)
    assert state(ending) == (False, 3)
    clock.now = 90.0
    assert state(ending) == (True, 3)


def test_what_was_seen_decides_the_status_whatever_ends_it(ending: ExitOnNan) -> None:
    """Before a corrupted request a signal means 0, after it 3."""
    assert state(ending) == (False, 0)
    ending.polled(3)
    assert state(ending) == (False, 0)
    ending.polled(5)
    assert (state(ending), ending.new) == ((False, 3), 2)
