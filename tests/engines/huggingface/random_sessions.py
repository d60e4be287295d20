"""Containment at random, for hours if need be: `python -m tests.engines.huggingface.random_sessions 0 200`.

Each seed is a session of its own: both ways of batching, prompts in chunks, with and without shared prefixes,
forks, clients that go away, caches that are too small, up to three faults of every kind, that come once or
each time. Printed are the seeds after which somebody was answered wrongly, was ended without a fault, got no
answer, or after which the cache had lost a block or kept NaN.
"""

import logging
import os
import random
import sys
import tempfile
import time
from typing import Any

import torch

import nanwatch
from tests.engines.huggingface.batches import Prompt, add, quick_collections
from tests.engines.huggingface.flaky import Fault, flaky
from tests.engines.huggingface.sessions import SECONDS, alone, session, talkative_llama

NEW_TOKENS = 12
PLACES = ["embedding", "layer", "attention", "head"]


def prompts() -> dict[str, list[int]]:
    """Return 24 prompts of 2 to 15 tokens, half of which begin as another one does."""
    dice = random.Random(0)
    made = {f"p{i}": [5 + dice.randrange(50) for _ in range(dice.randrange(2, 16))] for i in range(24)}
    return made | {f"p{i}": made[f"p{i - 12}"][:9] + made[f"p{i}"][:5] for i in range(12, 24)}


def run(seed: int, model: Any, texts: dict[str, list[int]], answers: dict[str, list[int]]) -> list[str]:
    """Run one session, and return what was wrong with it."""
    dice = random.Random(seed)
    is_async = dice.random() < 0.5
    how = {
        "allow_block_sharing": dice.random() < 0.6,
        "num_blocks": dice.choice([14, 20, 40, 64]),
        "max_batch_tokens": dice.choice([4, 8, 16, 64]),
        "max_requests_per_batch": 4,
    }
    names = [f"{dice.choice(list(texts))}#{i}" for i in range(dice.choice([10, 30]))]
    bad, times = set(dice.sample(names, dice.randrange(4))), dice.choice([1, 1000])
    faults = [Fault(name, dice.randrange(NEW_TOKENS), dice.choice(PLACES), times) for name in bad]
    leaving = {name for name in names if dice.random() < 0.05}
    # Asynchronously the engine itself fails where a request that is to be forked is alone in its batch.
    forked = set() if is_async else {name for name in names if dice.random() < 0.05}

    def prepare(manager: Any) -> None:
        for name in names:
            manager.num_return_sequences = 2 if name in forked else 1
            add(manager, {name: Prompt(texts[name.partition("#")[0]], NEW_TOKENS, dice.random() < 0.3)})

    outputs: dict[str, Any] = {}
    with (
        nanwatch.watch_generate(model),
        session(model, is_async=is_async, prepare=prepare, **how) as running,
        flaky(model, running.manager, faults),
    ):
        time.sleep(dice.random() / 5)
        for name in leaving:
            running.manager.cancel_request(name)
        deadline = time.monotonic() + SECONDS
        idle = 0
        while idle < 3 and time.monotonic() < deadline and running.manager.is_running():
            output = running.manager.get_result(timeout=0.05)
            if output is not None and output.is_finished():
                outputs[output.request_id] = output
            processor = running.manager.batch_processor
            is_idle = output is None and processor is not None and not processor.has_pending_requests()
            idle = idle + 1 if is_idle and running.manager.input_queue.empty() else 0
        checks = {
            "died": running.manager.is_running(),
            "kept NaN": running.cache_is_finite(),
            "lost blocks": running.all_blocks_are_back(),
        }
    wrong = [
        name
        for name, found in outputs.items()
        if found.error is None and found.generated_tokens != answers[name.partition("#")[0]]
    ]
    ended = [
        name
        for name, found in outputs.items()
        if found.error is not None and name.partition("__")[0] not in bad
    ]
    missing = sorted(set(names) - leaving - set(outputs))
    checks |= {f"wrong {wrong}": not wrong, f"ended {ended}": not ended, f"missing {missing}": not missing}
    return [what for what, is_well in checks.items() if not is_well]


def main(first: int, last: int) -> int:
    """Run the seeds; 1 where something was wrong."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    os.environ |= {"NANWATCH_ON_NAN": "abort", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as place, quick_collections():
        os.environ["NANWATCH_JOURNAL"] = f"{place}/journal"
        model, texts = talkative_llama(), prompts()
        answers = alone(model, texts, NEW_TOKENS)
        failed = 0
        for seed in range(first, last):
            faults = run(seed, model, texts, answers)
            failed += bool(faults)
            print(*([f"seed {seed}: {', '.join(faults)}\n"] if faults else []), end="", flush=True)
    print(f"{last - first} sessions, {failed} with something wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
