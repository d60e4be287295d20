"""Two tensor-parallel ranks on two cores: both hold the same logits, a request is counted once."""

import json
from pathlib import Path

import pytest

from nanwatch.journal.reader import JournalReader
from tests.engines.vllm.serving import fetch, sample, serve, sidecar

pytestmark = pytest.mark.vllm_all

TWO_RANKS = ["--tensor-parallel-size", "2"]


@pytest.mark.parametrize(("all_ranks", "ranks"), [("0", 1), ("1", 2)])
def test_a_request_of_two_ranks_is_counted_once(
    tiny_model: Path, tmp_path: Path, all_ranks: str, ranks: int
) -> None:
    """With NANWATCH_ALL_RANKS both tell of it, in one life and one replica, and the record shows two."""
    journal = tmp_path / "journal"
    plans = [{"id": "cmpl-bad-0", "at": 2, "row": 0}]
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "NANWATCH_ALL_RANKS": all_ranks}
    with (
        sidecar(journal) as address,
        serve(tiny_model, tmp_path, journal, plans, options=TWO_RANKS, **environment) as server,
    ):
        assert set(server.ask_all(["good", "bad", "fine"]).values()) == {200}
        listed = json.loads(fetch(f"{address}/v1/corrupted-requests") or "{}")["corrupted_requests"]
        metrics = fetch(f"{address}/metrics") or ""
    assert [(entry["request_id"], entry["rank"], entry["ranks"]) for entry in listed] == [("bad", "0", ranks)]
    assert sample(metrics, "corrupted_requests_total") == 1
    assert sample(metrics, "nanwatch_rank_disagreements_total") == 0
    reader = JournalReader(journal)
    reader.poll()
    reader.close()
    assert sorted(source.labels.rank for source in reader.sources) == ["0", "1"][:ranks]
    assert len({source.start.life for source in reader.sources if source.start}) == 1
