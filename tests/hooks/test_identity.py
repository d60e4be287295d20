"""Who a source is."""

import os
import subprocess
import sys

import pytest

from nanwatch import identity
from nanwatch.journal.line import Labels

LABELS = Labels("m", "0", "torch", "0", "h", "0", "")


def life_of(environment: dict[str, str]) -> str:
    return identity.life(environment)


def test_a_process_is_one_life_and_another_process_is_another() -> None:
    other = subprocess.run(
        [sys.executable, "-c", "from nanwatch import identity; print(identity.life({}))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert life_of({}) == life_of({})
    assert other != life_of({})


def test_all_ranks_of_a_torchrun_start_share_a_life_and_a_restart_is_another() -> None:
    ranks = [{"TORCHELASTIC_RUN_ID": "job-7", "RANK": str(rank)} for rank in range(2)]
    assert life_of(ranks[0]) == life_of(ranks[1])
    assert life_of(ranks[0]) != life_of({**ranks[0], "TORCHELASTIC_RESTART_COUNT": "1"})
    assert [identity.rank(rank) for rank in ranks] == ["0", "1"]


def test_torchruns_default_run_id_is_no_id_and_its_agent_stands_in() -> None:
    script = "import os; from nanwatch import identity; print(identity.life({'TORCHELASTIC_RUN_ID': 'none'}))"
    first, second = (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second  # two ranks, one parent
    assert "none" not in first
    assert str(os.getpid()) in first


def test_a_second_probe_of_the_same_labels_in_one_start_has_a_life_of_its_own() -> None:
    lives = [
        identity.start_line(LABELS, "given", device=None, counting=True, fail_fast=False).life
        for _ in range(3)
    ]
    assert lives == ["given", "given#2", "given#3"]


def test_on_a_cpu_there_is_no_uuid_and_asking_does_not_touch_cuda() -> None:
    assert identity.gpu_uuid("cpu") == ""
    assert identity.gpu_uuid(None) == ""


@pytest.mark.parametrize("environment", [{}, {"RANK": ""}])
def test_without_torchrun_the_rank_is_0(environment: dict[str, str]) -> None:
    assert identity.rank(environment) == "0"
