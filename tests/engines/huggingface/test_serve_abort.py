"""`transformers serve --continuous-batching` with NANWATCH_ON_NAN=abort, over HTTP.

Every word is a token; `poison` has NaN for its embedding, which attention carries to whoever is in the batch.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.engines.huggingface import model_folder
from tests.engines.huggingface.served import CONTINUOUS, Server, end, start, url_of

CLEAN = [f"w{5 + i} w{6 + i} w7" for i in range(4)]
POISON = "w5 poison w6"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("aborting")
    folder = model_folder.make(tmp_path_factory.mktemp("model") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANWATCH_ON_NAN", "abort")
        process = start(folder, home, CONTINUOUS)
    try:
        yield Server(url_of(process, home / "log"), home / "journal")
    finally:
        end(process)


@pytest.fixture(scope="module")
def alone(server: Server) -> dict[str, str]:
    """What each clean prompt is answered while nobody else is served."""
    return {prompt: text(server.complete(None, prompt, max_tokens=16)) for prompt in CLEAN}


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


def test_a_bad_request_among_many_is_a_503_that_names_nan_and_all_others_are_answered_well(
    server: Server, alone: dict[str, str]
) -> None:
    prompts = {f"cmpl-{number}-{uuid4().hex[:6]}": CLEAN[number % 4] for number in range(24)}
    bad = set(list(prompts)[3::11])
    prompts.update(dict.fromkeys(bad, POISON))
    with ThreadPoolExecutor(24) as pool:
        found = pool.map(lambda item: server.complete(*item, max_tokens=16), prompts.items())
        answers = dict(zip(prompts, found, strict=True))
    for name in bad:
        assert answers[name].status_code == 503
        error = answers[name].json()["error"]
        assert f"NaNs detected in logits: {{'{name}': " in error
        assert "it may be sent again" in error
        assert server.finished(name).n == 0
    good = {name: text(answer) for name, answer in answers.items() if name not in bad}
    assert good == {name: alone[prompt] for name, prompt in prompts.items() if name not in bad}
    time.sleep(1.1)  # a heartbeat: what else there was would be written by now
    assert bad <= set(server.seen().ids)
    assert not set(good) & set(server.seen().ids)
    assert server.seen().totals.aborted_requests == server.seen().corrupted


def test_a_bad_stream_ends_with_an_error_and_the_one_beside_it_goes_on(
    server: Server, alone: dict[str, str]
) -> None:
    def streamed(item: tuple[str, str]) -> list[str]:
        with server.stream(*item, max_tokens=16) as answer:
            assert answer.status_code == 200
            return [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]

    bad = f"sse-bad-{uuid4().hex[:6]}"
    with ThreadPoolExecutor(2) as pool:
        good_lines, bad_lines = pool.map(streamed, [(f"sse-{uuid4().hex[:6]}", CLEAN[0]), (bad, POISON)])
    errors = [found["error"] for found in map(json.loads, bad_lines) if "error" in found]
    assert [f"NaNs detected in logits: {{'{bad}': " in error for error in errors] == [True]
    assert not any("<pad>" in line for line in bad_lines)
    chunks = [json.loads(line) for line in good_lines if line != "[DONE]"]
    assert (
        "".join(chunk["choices"][0]["text"] or "" for chunk in chunks if chunk["choices"]) == alone[CLEAN[0]]
    )


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_the_other_endpoints_say_it_too(server: Server, kind: str) -> None:
    name = f"{kind}-{uuid4().hex[:6]}"
    if kind == "chat":
        messages = [{"role": "user", "content": POISON}]
        answer = server.post("/v1/chat/completions", name, messages=messages, max_tokens=4)
    else:
        answer = server.post("/v1/responses", name, input=POISON, max_output_tokens=4, stream=False)
    assert answer.status_code == 503
    assert "NaNs detected in logits" in answer.json()["error"]


def test_the_server_is_well_afterwards(server: Server, alone: dict[str, str], tmp_path: Path) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert text(server.complete(None, CLEAN[1], max_tokens=16)) == alone[CLEAN[1]]
