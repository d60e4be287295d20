"""Fail-fast in the process of vLLM itself: what generate() does at a NaN, and after it.

python -m tests.engines.vllm.stopping FOLDER v1|v2 sync|async
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.engines.vllm.engine import build

TOKENS = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}


def main(folder: str, runner: str, scheduling: str) -> None:
    """The second of three requests goes bad in its 3rd step; then somebody asks again, twice."""
    llm = build(Path(folder), runner, scheduling)
    from tests.engines.vllm.planting import plan

    plan.wanted.append({"id": "1-", "at": 3, "row": 0})
    for prompts in (3, 2, 1):
        print(json.dumps(_ask(llm, prompts)), flush=True)


def _ask(llm: Any, prompts: int) -> dict[str, Any]:
    from vllm import SamplingParams

    from nanwatch import NanLogitsError

    began = time.monotonic()
    said: dict[str, Any] = {"outputs": 0, "requests": None, "error": ""}
    try:
        said["outputs"] = len(
            llm.generate([{"prompt_token_ids": [5, 6, 7]}] * prompts, SamplingParams(**TOKENS))
        )
    except NanLogitsError as error:
        said |= {"requests": error.requests, "error": str(error)}
    return said | {"seconds": time.monotonic() - began}


if __name__ == "__main__":
    main(*sys.argv[1:])
