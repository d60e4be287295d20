"""One vLLM engine in this process, with a poisoned request among others.

    python -m tests.engines.vllm.sparing FOLDER v1|v2 sync|async SCENARIO...

It prints one JSON line for each scenario. Every prompt is run alone first, on the same engine: what it
makes then is what it has to make among others, token by token.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from tests.engines.vllm import in_process

TOKENS = 24
BLOCKS = 64
BLOCK_TOKENS = 32


def build(folder: Path, runner: str, scheduling: str, **more: Any) -> Any:
    """Return an LLM with few KV blocks, so that they are used again soon; they can be poisoned."""
    options = {
        "max_num_batched_tokens": 64,  # so that prompts come in chunks
        "block_size": BLOCK_TOKENS,
        "num_gpu_blocks_override": BLOCKS,
    }
    return in_process.build(folder, runner, scheduling, "poisoning", **options | more)


class Bench:
    """An engine and what is asked of it."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.engine = llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler

    def free_blocks(self) -> int:
        """Blocks that may be used."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def held_blocks(self) -> int:
        """Blocks that nobody can use though no request is there."""
        return BLOCKS - 1 - self.free_blocks()

    def forget(self) -> None:
        """Empty the prefix cache."""
        assert self.llm.reset_prefix_cache(), "somebody holds blocks"

    def add(self, name: str, text: list[int], tokens: int = TOKENS, **params: Any) -> None:
        """Add one request."""
        from vllm import SamplingParams

        usual = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}
        self.engine.add_request(name, {"prompt_token_ids": text}, SamplingParams(**usual | params))

    def step(self) -> dict[str, Any]:
        """Make one step; by name: what has ended, as [tokens, finish reason, stop reason] of each choice."""
        return {
            output.request_id: [
                [list(one.token_ids), one.finish_reason, one.stop_reason] for one in output.outputs
            ]
            for output in self.engine.step()
            if output.finished
        }

    def run(self, prompts: dict[str, list[int]], tokens: int = TOKENS) -> dict[str, Any]:
        """Run all prompts together to their ends; by name: [tokens, finish reason, stop reason]."""
        for name, text in prompts.items():
            self.add(name, text, tokens)
        done: dict[str, Any] = {}
        while self.engine.has_unfinished_requests():
            done |= {name: made[0] for name, made in self.step().items()}
        return done

    def alone(self, prompts: dict[str, list[int]], tokens: int = TOKENS) -> dict[str, list[int]]:
        """Run each prompt by itself, nothing cached; by name: its tokens."""
        made = {}
        for name, text in prompts.items():
            self.forget()
            made[name] = self.run({name: text}, tokens)[name][0]
        self.forget()
        return made


def prompt(seed: int, length: int = 40, start: list[int] | None = None) -> list[int]:
    """Return a prompt of its own for each seed, after a common start."""
    dice = random.Random(seed)
    start = start or []
    return start + [dice.randrange(10, 900) for _ in range(length - len(start))]


def eight(bench: Bench) -> dict[str, Any]:
    """Eight requests, one poisoned in its sixth step; then ten clean ones."""
    from tests.engines.vllm.poisoning import planned

    crowd = {("victim" if i == 3 else f"r{i}"): prompt(i) for i in range(8)}
    later = {f"later{i}": prompt(100 + i, length=20) for i in range(10)}
    alone = bench.alone(crowd | later)
    free = bench.free_blocks()
    with planned({"id": "victim", "at": 6, "block": 0}) as plan:
        among = bench.run(crowd)
        victims = set(plan.blocks[next(name for name in plan.blocks if "victim" in name)])
        after: dict[str, Any] = {}
        for name, text in later.items():
            after |= bench.run({name: text})
        reused = [name for name, blocks in plan.blocks.items() if "later" in name and victims & set(blocks)]
    return {
        "victim": among.pop("victim"),
        "wrong": [name for name, made in among.items() if made != [alone[name], "length", None]],
        "wrong_later": [name for name in later if after[name] != [alone[name], "length", None]],
        "right_of_victim": alone["victim"],
        "reused": len(reused),
        "free": [free, bench.free_blocks()],
    }


def embedding(bench: Bench) -> dict[str, Any]:
    """A prompt whose embedding is NaN, then six clean requests: what stock vLLM makes of them."""
    from tests.engines.vllm.poisoning import POISON

    later = {f"later{i}": prompt(200 + i, length=20) for i in range(6)}
    alone = bench.alone(later)
    free = bench.free_blocks()
    victim = bench.run({"victim": [*prompt(50, length=39), POISON]})["victim"]
    after: dict[str, Any] = {}
    for name, text in later.items():
        after |= bench.run({name: text})
    return {
        "victim": victim,
        "wrong_later": [name for name in later if after[name] != [alone[name], "length", None]],
        "free": [free, bench.free_blocks()],
    }


def prefix(bench: Bench) -> dict[str, Any]:
    """Four requests with a common prefix whose KV is poisoned, two without; then four with it again."""
    from tests.engines.vllm.poisoning import planned

    common = prompt(7, length=64)
    first = {"opens": prompt(300, 70, common)}
    readers = {f"reader{i}": prompt(301 + i, 70, common) for i in range(4)}
    others = {f"other{i}": prompt(311 + i, 70) for i in range(2)}
    later = {f"later{i}": prompt(321 + i, 70, common) for i in range(4)}
    alone = bench.alone(first | readers | others | later)
    free = bench.free_blocks()
    bench.run(first)  # fills the prefix cache
    with planned({"id": "reader2", "at": 5, "block": 0}) as plan:
        among = bench.run(readers | others)
        shared = {tuple(blocks[:2]) for name, blocks in plan.blocks.items() if "reader" in name}
    after = bench.run(later)
    return {
        "among": {name: _verdict(made, alone[name]) for name, made in among.items()},
        "later": {name: _verdict(made, alone[name]) for name, made in after.items()},
        "shared": len(shared),
        "free": [free, bench.free_blocks()],
    }


def spared_prefix(bench: Bench) -> dict[str, Any]:
    """Four requests with a common clean prefix; one is poisoned behind it: the others run on."""
    from tests.engines.vllm.poisoning import planned

    common = prompt(8, length=64)
    first = {"opens": prompt(400, 70, common)}
    readers = {f"reader{i}": prompt(401 + i, 70, common) for i in range(4)}
    later = {f"later{i}": prompt(421 + i, 70, common) for i in range(4)}
    alone = bench.alone(first | readers | later)
    free = bench.free_blocks()
    bench.run(first)
    with planned({"id": "reader2", "at": 5, "block": 2}):
        among = bench.run(readers)
    after = bench.run(later)
    return {
        "among": {name: _verdict(made, alone[name]) for name, made in among.items()},
        "later": {name: _verdict(made, alone[name]) for name, made in after.items()},
        "free": [free, bench.free_blocks()],
    }


def unseen(bench: Bench) -> dict[str, Any]:
    """As `prefix`, but one reader's logits show nothing: only the scan of the shared blocks finds it."""
    from tests.engines.vllm.poisoning import planned

    common = prompt(9, length=64)
    first = {"opens": prompt(500, 70, common)}
    readers = {f"reader{i}": prompt(501 + i, 70, common) for i in range(3)}
    later = {f"later{i}": prompt(521 + i, 70, common) for i in range(2)}
    alone = bench.alone(first | readers | later)
    free = bench.free_blocks()
    bench.run(first)
    with planned({"id": "reader2", "at": 5, "block": 0}, muted=["reader0"]):
        among = bench.run(readers)
    after = bench.run(later)
    return {
        "among": {name: made[1:] for name, made in among.items()},
        "later": {name: _verdict(made, alone[name]) for name, made in after.items()},
        "free": [free, bench.free_blocks()],
    }


def hung_up(bench: Bench) -> dict[str, Any]:
    """A client hangs up while the step that makes the NaN is in flight; then ten clean requests."""
    from tests.engines.vllm.poisoning import planned

    later = {f"later{i}": prompt(600 + i, length=20) for i in range(10)}
    alone = bench.alone(later)
    free = bench.free_blocks()
    with planned({"id": "victim", "at": 6, "block": 0}) as plan:
        bench.add("victim", prompt(60))
        bench.add("goes on", prompt(61))
        while not plan.poisoned:
            bench.step()
        bench.engine.abort_request(["victim"])
        while bench.engine.has_unfinished_requests():
            bench.step()
        after: dict[str, Any] = {}
        for name, text in later.items():
            after |= bench.run({name: text})
    return {
        "wrong_later": [name for name in later if after[name] != [alone[name], "length", None]],
        "free": [free, bench.free_blocks()],
    }


def siblings(bench: Bench) -> dict[str, Any]:
    """One request with n=3, of which one child is poisoned."""
    from vllm.sampling_params import RequestOutputKind

    from tests.engines.vllm.poisoning import planned

    free = bench.free_blocks()
    last = RequestOutputKind.FINAL_ONLY  # as LLM.generate and a client without a stream have it
    with planned({"id": "1_victim", "at": 6, "block": 1}):
        bench.add("victim", prompt(70, 50), n=3, temperature=1.0, output_kind=last)
        bench.add("other", prompt(71))
        done: dict[str, Any] = {}
        while bench.engine.has_unfinished_requests():
            done |= bench.step()
    bench.run({"one more": prompt(72)})
    return {
        "victim": [[len(tokens), reason, why] for tokens, reason, why in done["victim"]],
        "other": done["other"][0][1],
        "free": [free, bench.free_blocks()],
    }


def load(bench: Bench) -> dict[str, Any]:
    """200 requests that come and go, 5 % of them poisoned at random; half of all share a first block."""
    from tests.engines.vllm.poisoning import planned

    dice = random.Random(1)
    common, tokens = prompt(10, length=BLOCK_TOKENS), 10
    requests = {
        f"load-{i:03}-": prompt(1000 + i, dice.randrange(40, 90), common if i % 2 else None)
        for i in range(200)
    }
    alone = bench.alone(requests, tokens)
    free = bench.free_blocks()
    poisoned = {name: dice.randrange(2, tokens) for name in dice.sample(sorted(requests), 10)}
    waiting = list(requests.items())
    done: dict[str, Any] = {}
    with planned(*({"id": name, "at": at, "block": 1} for name, at in poisoned.items())):
        while waiting or bench.engine.has_unfinished_requests():
            for _ in range(min(len(waiting), dice.randrange(3))):
                bench.add(*waiting.pop(0), tokens)
            done |= {name: made[0] for name, made in bench.step().items()}
    bench.run({"one more": prompt(11)})
    return {
        "poisoned": sorted(poisoned),
        "ended": sorted(name for name, made in done.items() if made[1] == "error"),
        "wrong": [
            name for name in requests if name not in poisoned and done[name] != [alone[name], "length", None]
        ],
        "garbage_sent": [name for name in poisoned if not _begins(alone[name], done[name][0])],
        "free": [free, bench.free_blocks()],
    }


def _begins(right: list[int], made: list[int]) -> bool:
    """Whether what was made is the beginning of what is right, and not all of it."""
    return len(made) < len(right) and made == right[: len(made)]


def _verdict(made: list[Any], right: list[int]) -> str:
    tokens, reason, why = made
    if reason == "error":
        return f"named: {why}" if _begins(right, tokens) else "garbage in what was sent"
    return "right" if tokens == right else "garbage with success"


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (eight, embedding, prefix, spared_prefix, unseen, hung_up, siblings, load)
}


def main(folder: str, runner: str, scheduling: str, *scenarios: str) -> None:
    """Run the scenarios one after another on one engine."""
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    more = {"speculative_config": ngram} if "speculative" in scenarios else {}
    bench = Bench(build(Path(folder), runner, scheduling, **more))
    for name in (name for name in scenarios if name != "speculative"):
        what = {"scenario": name, "scheduler": type(bench.scheduler).__name__}
        print(json.dumps(what | SCENARIOS[name](bench)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
