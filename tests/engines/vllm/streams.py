"""Clients of `vllm serve` that read tokens: all at once, or as a stream."""

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TOKENS = 16


@dataclass
class Answer:
    """What a client was given."""

    status: int = 0
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: dict[str, Any] | None = None  # the body of a failed answer, or the error chunk of a stream


def complete(port: int, request_id: str, prompt: list[int], *, stream: bool, **more: Any) -> Answer:
    """Complete one prompt, greedily."""
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": stream,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    connection.request("POST", "/v1/completions", json.dumps(body | more), headers)
    response = connection.getresponse()
    answer = Answer(response.status)
    for part in _chunks(response) if stream and response.status == 200 else [json.loads(response.read())]:
        if "error" in part:
            answer.error = part["error"]
            continue
        for choice in part["choices"]:
            answer.tokens += choice.get("token_ids") or []
            answer.finish = choice["finish_reason"] or answer.finish
    connection.close()
    return answer


def complete_all(port: int, prompts: dict[str, list[int]], *, stream: bool) -> dict[str, Answer]:
    """Complete all at once, each from a client of its own."""
    answers: dict[str, Answer] = {}

    def ask(name: str) -> None:
        answers[name] = complete(port, name, prompts[name], stream=stream)

    threads = [threading.Thread(target=ask, args=(name,)) for name in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        text = line.decode().strip()
        if text.startswith("data: ") and text != "data: [DONE]":
            yield json.loads(text.removeprefix("data: "))
