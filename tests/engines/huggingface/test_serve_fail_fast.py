"""`transformers serve --continuous-batching` under fail-fast, over HTTP: who is told what of whom."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engines.huggingface import model_folder
from tests.engines.huggingface.served import CONTINUOUS, Server, end, start, url_of

CLEAN, POISON = "w5 w6 w7", "w5 w6 spark"


def test_the_bad_ones_client_reads_its_own_id_and_everybody_else_only_that_there_was_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    process = start(model_folder.make(tmp_path / "tiny"), tmp_path, CONTINUOUS)
    try:
        server = Server(url_of(process, tmp_path / "log"), tmp_path / "journal")
        with ThreadPoolExecutor(3) as pool:
            stream = pool.submit(_last_line_of_stream, server)
            plain = pool.submit(server.complete, "plain", CLEAN, max_tokens=4000)
            _wait_for_two_requests(server)
            bad = server.complete("secret-1", POISON)
            late = server.complete("late", CLEAN)
            answers = {"plain": plain.result(), "secret-1": bad, "late": late}
        assert process.wait(30) == 70
    finally:
        end(process)
    assert {answer.status_code for answer in answers.values()} == {503}
    told = {name: answer.json()["error"] for name, answer in answers.items()}
    told["stream"] = json.loads(stream.result())["error"]
    assert told.pop("secret-1").endswith(": NaNs detected in logits: {'secret-1': 64}")
    for text in told.values():
        assert text.endswith("the engine was stopped: 64 NaNs in the logits of another request")
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert "NaNs detected in logits: {'secret-1': 64}" in log
    assert "nanwatch run: stopped at NaN in the logits of 'secret-1' (journal " in log


def _last_line_of_stream(server: Server) -> str:
    with server.stream("stream", CLEAN, max_tokens=4000) as answer:
        lines: list[str] = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    return lines[-1]


def _wait_for_two_requests(server: Server) -> None:
    deadline = time.monotonic() + 30
    while not server.journal.exists() or server.seen().totals.requests < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
