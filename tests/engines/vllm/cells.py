"""What happens to vLLM in each cell of the table, and what is right, worked out by hand.

A cell is a few requests that are added together to an idle engine of at most 16 tokens a step,
and one NaN. Steps are counted from the first one of the cell. Prompts have 3 tokens where nothing
else is said, so that all are prefilled in step 1 and each later step gives every request a row.
"""

from dataclasses import dataclass, field
from typing import Any

TOKENS_A_STEP = 16


@dataclass(frozen=True)
class Request:
    """One request: its id, the length of its prompt, and its sampling parameters."""

    name: str
    prompt: int = 3
    params: dict[str, Any] = field(default_factory=dict)
    after: int = 0  # added once so many steps are done


@dataclass(frozen=True)
class Cell:
    """Requests, a plan for the NaN, and the one corrupted request that is right."""

    name: str
    requests: tuple[Request, ...]
    plant: dict[str, Any]
    corrupted: str  # as it is shown
    step: int | None  # None: it depends on when the grammar is compiled
    phase: str
    abort_after: int = 0  # steps
    speculative: bool = False


def _three(**params: Any) -> tuple[Request, ...]:
    """Three requests; the second one is the victim."""
    return (Request("a"), Request("victim", params=params), Request("c"))


CELLS = (
    # Step 1 prefills all three, so the victim's 3rd row is in step 3.
    Cell("plain", _three(), {"id": "victim", "at": 3, "row": 0}, "victim", 3, "decode"),
    # a decodes from step 2 on. The victim comes after step 2; of 16 tokens a takes one, so its
    # prompt of 40 goes in chunks of 15, 15 and 10: steps 3, 4, 5. The NaN is in the middle one.
    Cell(
        "chunked prefill",
        (Request("a"), Request("victim", prompt=40, after=2)),
        {"id": "victim", "at": 2, "row": 0},
        "victim",
        4,
        "prefill",
    ),
    # Tokens 0 to 6 hold the NaN; the grammar and the allowed tokens leave none of them.
    Cell(
        "grammar",
        _three(regex="[a-z]{20}"),
        {"id": "victim", "at": 4, "row": 0},
        "victim",
        None,
        "decode",
    ),
    Cell(
        "allowed_token_ids",
        _three(allowed_token_ids=list(range(100, 120))),
        {"id": "victim", "at": 4, "row": 0},
        "victim",
        4,
        "decode",
    ),
    # Bad in step 3, gone after step 4: it never finishes.
    Cell("abort", _three(), {"id": "victim", "at": 3, "row": 0}, "victim", 3, "decode", abort_after=4),
    # The second child of the victim; its id is "1_victim-" and eight digits.
    Cell(
        "n=2",
        (Request("a"), Request("victim", params={"n": 2, "temperature": 1.0, "seed": 1})),
        {"id": "1_victim", "at": 3, "row": 0},
        "1_victim",
        3,
        "decode",
    ),
    # Both prompts have 8 tokens and 7 rows of prompt logits. V1 asks for them one by one: the
    # victim's is call 2, row 4. V2 asks for all tokens of the step at once: 8 + 4 of call 1. A call
    # is a step of its own, after the sampled one: V1's are steps 2 and 3, V2's is step 2.
    Cell(
        "prompt_logprobs",
        (
            Request("a", prompt=8, params={"prompt_logprobs": 1}),
            Request("victim", prompt=8, params={"prompt_logprobs": 1}),
        ),
        {"id": "victim", "prompt": {"v1": (2, 4), "v2": (1, 12)}},
        "victim",
        None,
        "prompt",
    ),
    # The model repeats itself, so that every request has drafts by its 4th step;
    # each time the row after the request's first one. vLLM takes row i for request i.
    Cell(
        "speculation, second",
        (Request("a"), Request("victim")),
        {"id": "victim", "at": 4, "row": 1},
        "victim",
        4,
        "verify",
        speculative=True,
    ),
    Cell(
        "speculation, first",
        (Request("victim"), Request("b")),
        {"id": "victim", "at": 4, "row": 1},
        "victim",
        4,
        "verify",
        speculative=True,
    ),
)
