"""SIGKILL at a random moment, of the engine or of the sidecar, under load."""

from pathlib import Path

import pytest

from tests.chaos.rounds import run_rounds

ROUNDS = 25


@pytest.mark.slow
def test_no_sigkill_loses_doubles_or_invents_a_corrupted_request(tmp_path: Path, journal: Path) -> None:
    tally = run_rounds(tmp_path, ROUNDS, seed=20)
    assert tally.broken == []
    assert tally.rounds == ROUNDS
    assert tally.returned > ROUNDS
    assert tally.sidecar_kills > 3
