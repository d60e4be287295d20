"""vLLM's internal ids, and what the client said."""

import pytest

from nanwatch.engines.vllm.client_ids import client_id

RANDOM = "5c0b6d4a"
IDS = [
    (f"cmpl-my-1-0-{RANDOM}", "my-1"),
    (f"cmpl-my-1-12-{RANDOM}", "my-1"),  # the 13th prompt of one completion
    (f"chatcmpl-my-1-{RANDOM}", "my-1"),
    (f"chatcmpl-my-1-0-{RANDOM}", "my-1-0"),  # a chat adds no index: the client said so
    (f"0_chatcmpl-my-1-{RANDOM}", "my-1"),
    (f"1_cmpl-my-1-0-{RANDOM}", "my-1"),
    (f"embd-doc-3-{RANDOM}", "doc"),
    (f"generate-tokens-x-{RANDOM}", "x"),
    (f"7-{RANDOM}", "7"),  # LLM.generate
    (f"1_7-{RANDOM}", "7"),
    (f"my-1-{RANDOM}", "my-1"),  # AsyncLLM, an id of the program's own
    (f"1_my-{RANDOM}", "1_my"),  # ... or the child of one called "my": nobody can tell
    (f"resp_abc-{RANDOM}", "resp_abc"),
    ("my-1", "my-1"),
    ("cmpl-", "cmpl-"),
    ("", ""),
    ("caf\u00e9-DEADBEEF", "caf\u00e9-DEADBEEF"),  # vLLM writes small digits
    ("-5c0b6d4a", "-5c0b6d4a"),
]


@pytest.mark.parametrize(("internal", "client"), IDS)
def test_the_client_finds_its_own_id(internal: str, client: str) -> None:
    assert client_id(internal, {}) == client


def test_where_vllm_adds_nothing_nothing_is_cut_off() -> None:
    told = {"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1"}
    assert client_id(f"cmpl-job-{RANDOM}-0", told) == f"job-{RANDOM}"
    assert client_id(f"chatcmpl-job-{RANDOM}", told) == f"job-{RANDOM}"
