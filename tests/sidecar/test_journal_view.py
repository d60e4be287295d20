"""Polling beside the routes: fresh where the disk is well, bounded where it hangs."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from nanwatch.journal.reader import JournalReader
from nanwatch.settings import Settings
from nanwatch_sidecar import http_loop
from nanwatch_sidecar.app import create_app
from nanwatch_sidecar.journal_view import PATIENCE_SECONDS, POLL_SECONDS, JournalView
from tests.engine import Engine


class HangingReader(JournalReader):
    """A reader whose disk hangs, before or after it has read, while that is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hangs, self.hangs_after = threading.Event(), threading.Event()
        self.has_read = threading.Event()
        self.goes_on = threading.Event()
        self.polls = 0

    def poll(self) -> None:
        if self.hangs.is_set():
            self.goes_on.wait(20)
        self.polls += 1
        super().poll()
        self.has_read.set()
        if self.hangs_after.is_set():
            self.goes_on.wait(20)


@pytest.fixture
def reader(journal: Path) -> HangingReader:
    return HangingReader(journal)


@pytest.fixture
def view(reader: HangingReader) -> Iterator[JournalView]:
    made = JournalView(reader)
    yield made
    reader.goes_on.set()
    made.close(5)


def test_a_refresh_waits_for_a_poll_that_begins_after_it(view: JournalView, engine: Engine) -> None:
    """What was written before the call is there after it."""
    for n in range(1, 50):
        engine.serve()
        assert view.refresh()
        assert view.sources[0].requests == n


def test_a_poll_that_is_under_way_is_not_fresh_enough(
    view: JournalView, reader: HangingReader, engine: Engine
) -> None:
    """A poll may have read before the call what was written since: the next one is waited for."""
    reader.hangs_after.set()
    view.start()
    assert reader.has_read.wait(30)
    engine.serve()
    refreshed = threading.Thread(target=view.refresh)
    refreshed.start()
    time.sleep(0.1)
    reader.hangs_after.clear()
    reader.goes_on.set()
    refreshed.join(5)
    assert view.sources[0].requests == 1


def test_it_polls_by_itself(view: JournalView, reader: HangingReader) -> None:
    """Four times a second, though nobody asks."""
    began = time.monotonic()
    view.start()
    view.start()
    while reader.polls < 5:
        assert time.monotonic() - began < 20
        time.sleep(0.01)
    assert reader.polls <= 2 + (time.monotonic() - began) / POLL_SECONDS


def test_a_disk_that_hangs_makes_answers_old_and_never_late(
    view: JournalView, reader: HangingReader, engine: Engine
) -> None:
    """/metrics answers with the last values in the end, /healthz at once, /readyz says what is wrong."""
    client = TestClient(create_app(Settings(), view))
    engine.corrupt("A")
    assert client.get("/readyz").status_code == 200
    reader.hangs.set()
    engine.corrupt("B")
    started = time.monotonic()
    text = client.get("/metrics").text
    assert PATIENCE_SECONDS <= time.monotonic() - started < 10
    assert 'corrupted_requests_total{engine="0",model_name="llama",replica="0",runtime="torch"} 1.0' in text
    started = time.monotonic()
    assert client.get("/healthz").status_code == 200
    assert time.monotonic() - started < PATIENCE_SECONDS
    (problem,) = client.get("/readyz").json()["problems"]
    assert problem.startswith(f"{view.folder}: reading it has not come back for ")
    reader.hangs.clear()
    reader.goes_on.set()
    assert view.refresh()
    assert view.sources[0].corrupted_requests == 2
    assert list(view.problems) == []


def test_many_scrapes_of_a_hanging_disk_wait_side_by_side(view: JournalView, reader: HangingReader) -> None:
    """Ten scrapers of a disk that hangs take as long as one, and hang no second thread."""
    view.refresh()
    reader.hangs.set()
    before = threading.active_count()
    waiting = [threading.Thread(target=view.refresh, args=(1,)) for _ in range(10)]
    started = time.monotonic()
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert time.monotonic() - started < 5
    assert threading.active_count() == before


def test_an_error_nobody_thought_of_is_said_once_and_crashes_nothing(
    view: JournalView, reader: HangingReader, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in the reading leaves the last values, and shows on /readyz until it is gone."""
    engine.serve()
    view.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(reader, "poll", lambda: 1 // 0)
        view.refresh()
        view.refresh()
        assert list(view.problems) == [
            "reading the journal failed: ZeroDivisionError: integer division or modulo by zero"
        ]
        assert view.sources[0].requests == 1
    view.refresh()
    assert list(view.problems) == []


def test_the_error_is_logged_once(
    view: JournalView,
    reader: HangingReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failure at each of four polls a second is one message."""
    monkeypatch.setattr(reader, "poll", lambda: 1 // 0)
    for _ in range(3):
        view.refresh()
    assert len(caplog.records) == 1


def test_the_end_comes_after_a_last_poll(view: JournalView, engine: Engine) -> None:
    """What was written up to the stop is seen; after it nobody waits and no descriptor is held."""
    view.refresh()
    engine.corrupt("A")
    view.close(5)
    assert view.sources[0].corrupted_requests == 1
    assert not view._thread.is_alive()
    assert not view.refresh()


def test_the_end_does_not_wait_for_a_disk_that_hangs(view: JournalView, reader: HangingReader) -> None:
    """Stop wakes those who wait, and close gives up on the disk."""
    view.refresh()
    reader.hangs.set()
    waiting = threading.Thread(target=view.refresh, args=(20,))
    waiting.start()
    started = time.monotonic()
    view.close(0.2)
    waiting.join(30)
    assert time.monotonic() - started < 10


def test_each_poll_tells_the_corrupted_requests_so_far(journal: Path) -> None:
    """Whoever waits for the first corrupted request hears of each poll, the first among them."""
    told: list[int] = []
    with Engine(journal) as engine, Engine(journal, counting=False, rank="1") as rank_1:
        engine.corrupt("A")
        view = JournalView(JournalReader(journal), told.append)
        view.refresh()
        engine.corrupt("B")
        rank_1.corrupt("A", "B")
        view.refresh()
        view.close(5)
    assert (told[0], told[-1]) == (1, 2)


def test_a_rank_that_disagrees_is_judged_while_it_is_followed(
    view: JournalView, journal: Path, engine: Engine
) -> None:
    """The view judges at each poll, so that nothing is forgotten before it was compared."""
    engine.corrupt("agreed")
    with Engine(journal, counting=False, rank="1") as rank_1:
        rank_1.corrupt("agreed")
        rank_1.corrupt("alone", first_seen_boot_ns=1)
        view.refresh()
        client = TestClient(create_app(Settings(), view))
        text = client.get("/metrics", params={"name[]": "nanwatch_rank_disagreements_total"}).text
    assert text.splitlines()[-1].endswith(" 1.0")


def test_the_server_ends_at_once_though_a_scrape_waits_for_the_disk(
    view: JournalView, reader: HangingReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its end nobody waits any more: a scrape under way is answered with the last values."""
    view.refresh()
    reader.hangs.set()
    monkeypatch.setattr(view, "refresh", partial(view.refresh, 20))
    monkeypatch.setattr(http_loop, "DRAIN_SECONDS", 20)
    answers: list[int] = []
    ends_at = time.monotonic() + 0.5
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        scrape = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=30).status_code))
        scrape.start()
        app = create_app(Settings(), view)
        asyncio.run(http_loop.run(app, listener, lambda: time.monotonic() > ends_at, view.stop))
    assert time.monotonic() - ends_at < 10
    scrape.join(30)
    assert answers == [200]
