"""`nanwatch run -- transformers serve`, its clients over HTTP: the X-Request-Id is what shows."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from tests.engines.huggingface import model_folder
from tests.engines.huggingface.served import CONTINUOUS, Process, Server, end, start, url_of

CLEAN, SPARK = "w5 w6 w7", "w5 w6 spark"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder.make(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def servers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Both kinds of server, started side by side: most of their start is imports."""
    begun: dict[str, tuple[Process, Path]] = {}
    try:
        for name, flags in (("generate", ()), ("continuous", CONTINUOUS)):
            home = tmp_path_factory.mktemp(name)
            begun[name] = (start(folder, home, flags), home)
        yield {
            name: Server(url_of(process, home / "log"), home / "journal")
            for name, (process, home) in begun.items()
        }
    finally:
        for process, _ in begun.values():
            end(process)


@pytest.fixture(params=["generate", "continuous"])
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]


def test_of_32_requests_at_once_exactly_the_poisoned_ones_are_named(server: Server) -> None:
    prompts = {f"cmpl-{number}-{uuid4().hex[:6]}": CLEAN for number in range(32)}
    poisoned = set(list(prompts)[3::11])
    assert len(poisoned) == 3
    prompts.update(dict.fromkeys(poisoned, SPARK))
    before = server.seen() if server.journal.exists() else None
    with ThreadPoolExecutor(32) as pool:
        answers = dict(zip(prompts, pool.map(server.complete, prompts, prompts.values()), strict=True))
    assert {answer.status_code for answer in answers.values()} == {200}
    assert all(answer.headers["X-Request-Id"] == name for name, answer in answers.items())
    for request_id in poisoned:
        assert server.finished(request_id).n == 0
    time.sleep(1.1)  # a heartbeat: what else there was would be written by now
    after = server.seen()
    assert set(after.ids) - set(before.ids if before else ()) == poisoned
    assert after.totals.requests - (before.totals.requests if before else 0) == 32
    assert after.totals.dropped_steps == {}
    assert after.totals.unattributed_nan_rows == 0
    texts = {name: answer.json()["choices"][0]["text"] for name, answer in answers.items()}
    healthy = next(text for name, text in texts.items() if name not in poisoned)
    assert {name for name, text in texts.items() if text != healthy} == poisoned


def test_a_streamed_answer_is_named_by_its_header(server: Server) -> None:
    request_id = f"sse-{uuid4().hex[:6]}"
    with server.stream(request_id, SPARK) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert len(lines) >= 3  # four tokens, of which the first is <pad>, and the end
    request = server.finished(request_id)
    assert (request.phase, request.rows) == ("prefill", 1)


def test_a_client_that_goes_away_in_the_middle_of_its_stream_ends_its_request(server: Server) -> None:
    request_id = f"gone-{uuid4().hex[:6]}"
    with server.stream(request_id, SPARK, max_tokens=4000) as answer:
        assert answer.status_code == 200
        next(line for line in answer.iter_lines() if line.startswith("data: "))
    assert server.finished(request_id).rows == 1
    assert server.complete(f"next-{uuid4().hex[:6]}", CLEAN).status_code == 200


def test_a_client_without_an_id_finds_the_one_that_shows_in_its_answer(server: Server) -> None:
    answer = server.complete(None, SPARK)
    assert server.finished(answer.headers["X-Request-Id"]).rows == 1


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_the_other_endpoints_name_their_requests_too(kind: str, server: Server) -> None:
    request_id = f"{kind}-{uuid4().hex[:6]}"
    if kind == "chat":
        messages = [{"role": "user", "content": SPARK}]
        answer = server.post("/v1/chat/completions", request_id, messages=messages, max_tokens=4)
    else:
        answer = server.post("/v1/responses", request_id, input=SPARK, max_output_tokens=4, stream=False)
    assert answer.status_code == 200, answer.text
    assert server.finished(request_id).rows == 1
