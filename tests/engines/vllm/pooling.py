"""A pooling model in vLLM: embeddings of three prompts, one of which holds a token that is NaN.

python -m tests.engines.vllm.pooling FOLDER v1|v2
"""

import json
import sys
from pathlib import Path

from tests.engines.vllm.engine import build

BAD = 77  # its embedding is NaN


def main(folder: str, runner: str) -> None:
    """Embed; prints how many values of each embedding are NaN."""
    llm = build(Path(folder), runner, "sync", runner="pooling", max_num_batched_tokens=64)
    worker = llm.llm_engine.model_executor.driver_worker.worker
    worker.model_runner.get_model().model.embed_tokens.weight.data[BAD] = float("nan")
    prompts = [[5, 6, 7], [5, BAD, 7], [8, 9]]
    outputs = llm.embed([{"prompt_token_ids": prompt} for prompt in prompts])
    for output in outputs:
        values = output.outputs.embedding
        print(json.dumps({"id": output.request_id, "nans": sum(value != value for value in values)}))  # noqa: PLR0124  only NaN is not itself


if __name__ == "__main__":
    main(*sys.argv[1:])
