"""The ends of a process, probe by probe."""

import pytest

from nanwatch import lifecycle


class Probe:
    """Stands for a probe that cannot be closed, or one that can."""

    def __init__(self, *, fails: bool) -> None:
        self.fails, self.closed = fails, False

    def close(self, timeout: float) -> None:
        if self.fails:
            raise RuntimeError("cannot be closed")
        self.closed = True

    def forget_parent(self) -> None:
        """Not asked for here."""


def test_a_probe_that_cannot_be_closed_at_exit_does_not_cost_the_others_their_last_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    probes = [Probe(fails=number < 3) for number in range(6)]
    monkeypatch.setattr(lifecycle, "_living", set(probes))
    lifecycle._close_all()
    assert [probe.closed for probe in probes] == [False] * 3 + [True] * 3
    assert len(caplog.records) == 3
