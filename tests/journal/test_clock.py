"""The clock of the journal: no jump of the wall clock touches it, and it says where it compares."""

import os
import time
from pathlib import Path

import pytest

from nanwatch.journal.clock import boot_ns, clock_domain


def test_boot_time_only_grows() -> None:
    """It counts from boot, the time spent suspended included."""
    before = boot_ns()
    assert before <= boot_ns()
    monotonic = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert 0 < monotonic <= boot_ns()


def test_the_domain_is_one_for_all_processes_of_a_boot() -> None:
    """Boot id and time namespace."""
    boot, namespace = clock_domain().split("/")
    assert len(boot) == 36
    assert namespace == os.readlink("/proc/self/ns/time")  # noqa: PTH115
    assert clock_domain() == clock_domain()


def test_without_proc_there_is_a_name_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox without /proc must not keep an engine from starting."""

    def gone(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", gone)
    monkeypatch.setattr(os, "readlink", gone)
    assert clock_domain() == "unknown/none"
