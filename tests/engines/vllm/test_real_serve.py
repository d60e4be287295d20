"""`vllm serve`: many clients at once, three of them poisoned; and a server that stops at a NaN."""

import json
import sys
import time
from pathlib import Path

from tests.engines.vllm.serving import fetch, sample, serve, sidecar
from tests.seen import read

CLIENTS = [f"client-{number:02}" for number in range(16)]
POISONED = {"client-03": 2, "client-07": 5, "client-12": 3}  # and in which of its steps


def test_of_16_clients_exactly_the_three_poisoned_ones_are_named(tiny_model: Path, tmp_path: Path) -> None:
    """By the X-Request-Id that each sent; the engine's own id stands beside it."""
    journal = tmp_path / "journal"
    plans = [{"id": f"cmpl-{name}-0", "at": at, "row": 0} for name, at in POISONED.items()]
    with serve(tiny_model, tmp_path, journal, plans) as server, sidecar(journal) as address:
        assert set(server.ask_all(CLIENTS).values()) == {200}
        theirs = fetch(f"http://127.0.0.1:{server.port}/metrics") or ""
        ours = scrape(address, requests=16)
        listed = json.loads(fetch(f"{address}/v1/corrupted-requests") or "{}")["corrupted_requests"]
    assert {entry["request_id"] for entry in listed} == set(POISONED)
    assert {entry["engine_request_id"].rpartition("-")[0] for entry in listed} == {
        f"cmpl-{name}-0" for name in POISONED
    }
    assert {(entry["engine"], entry["model_name"], entry["runtime"]) for entry in listed} == {
        ("0", "tiny", "vllm")
    }
    assert (sample(ours, "corrupted_requests_total"), sample(ours, "nanwatch_requests_total")) == (3, 16)
    print(f"nanwatch 3, vLLM's own {sample(theirs, 'vllm:corrupted_requests_total'):.0f}")
    assert read(journal).totals.dropped_steps == {}


def scrape(address: str, requests: int) -> str:
    """Return the metrics once they tell of so many requests: healthy ones are written four times a second."""
    metrics = ""
    for _ in range(50):
        metrics = fetch(f"{address}/metrics") or ""
        if sample(metrics, "nanwatch_requests_total") >= requests:
            break
        time.sleep(0.1)
    return metrics


def test_fail_fast_leaves_its_trace_behind_and_status_70(tiny_model: Path, tmp_path: Path) -> None:
    """VLLM itself ends with status 0, and its /metrics ends with it."""
    journal = tmp_path / "journal"
    run = [sys.executable, "-m", "nanwatch", "run", "--"]
    plans = [{"id": "cmpl-my-request-0", "at": 3, "row": 0}]
    with (
        sidecar(journal) as address,
        serve(tiny_model, tmp_path, journal, plans, before=run, NANWATCH_FAIL_FAST="1") as server,
    ):
        assert server.ask("a-clean-one") == 200
        assert server.ask("my-request") != 200
        assert server.process.wait(60) == 70
        metrics = fetch(f"{address}/metrics") or ""
    assert sample(metrics, "corrupted_requests_total") == 1
    assert sample(metrics, "nanwatch_fail_fast_trips_total") == 1
    said = server.log.read_text()
    assert f"nanwatch run: stopped at NaN in the logits of 'my-request' (journal {journal})" in said
    assert "NaNs detected in logits: {'my-request': 7}" in said
