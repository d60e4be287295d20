"""What nanwatch costs a step of a real vLLM, beside what vLLM's own check costs: `make bench-vllm`.

8 requests that decode with a real vocabulary, in this process, on the CPU. The same engine takes turns: as
it is, with nanwatch, with VLLM_COMPUTE_NANS_IN_LOGITS. It needs vllm, so it is not among
`python -m benchmarks`. Two models, with made-up weights:
    smallest    next to nothing: the forward is as short as it gets, so that the count weighs as much as it
                ever will
    small       of half a billion weights, as people do serve on a CPU, or as a draft

What is compared is CPU time: of the engine's thread, and what nanwatch's own threads take for each step where
all steps are watched. On a machine that others use too, the seconds on the wall tell more of them; `--wall`
takes those. Blocks are of three steps, of which the fastest counts, so that there are many rounds; and a
second block without anybody looking takes its turn, so that the table itself tells how small a difference it
can see.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Self

from benchmarks.measure import OF_THE_MEDIAN, AtMost, Line, Rounds, Spread, print_table, take_turns
from tests.engines.vllm.tiny import write_model

ROWS, VOCABULARY = 8, 128_256
GOAL = AtMost(1.02)
OWN = "VLLM_COMPUTE_NANS_IN_LOGITS"
WRAPPED = ("execute_model", "sample_tokens", "_get_prompt_logprobs_dict")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "NANWATCH_ENABLED": "1",
    # One thread: two that wait for each other spin, and on a machine that is shared that is all they do.
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "OMP_NUM_THREADS": "1",
}


class Size(NamedTuple):
    """A model, by what differs from the smallest, and how often each way takes its turn."""

    shape: dict[str, int]
    rounds: int
    steps_in_a_row: int  # all of them watched: what nanwatch's own threads take is the mean of so many


SIZES = {
    "smallest": Size({}, 600, 500),
    "small": Size(
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "head_dim": 64,
        },
        40,
        20,
    ),
}


class Steps:
    """One engine, and the three ways in which a step of it is taken."""

    def __init__(self, model: Path, dtype: str, size: Size = SIZES["smallest"]) -> None:
        from vllm import LLM

        llm = LLM(
            str(model),
            load_format="dummy",
            hf_overrides=size.shape,
            enforce_eager=True,
            dtype=dtype,
            max_model_len=2048,
            max_num_seqs=ROWS,
            kv_cache_memory_bytes=256 << 20,
        )
        self._engine, self._size = llm.llm_engine, size
        self._runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        self._watching = {name: vars(self._runner)[name] for name in WRAPPED}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the engine, and with it the probe, as long as its journal has a folder."""
        self._engine.engine_core.shutdown()

    def alone(self) -> None:
        """Take a step without anybody looking."""
        for name in WRAPPED:
            vars(self._runner).pop(name, None)
        self._step()

    def with_nanwatch(self) -> None:
        """Take a step with nanwatch."""
        vars(self._runner).update(self._watching)
        self._step()

    def seconds_aside(self) -> float:
        """Return the CPU time that nanwatch's threads take for a step, of many in a row."""
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("nanwatch-")]
        clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident]
        before = sum(map(time.clock_gettime, clocks))
        for _ in range(self._size.steps_in_a_row):
            self.with_nanwatch()
        return (sum(map(time.clock_gettime, clocks)) - before) / self._size.steps_in_a_row

    def with_vllms_own(self) -> None:
        """Take a step with vLLM's own check; it keeps its variables once read, so this one is set there."""
        from vllm import envs

        setattr(envs, OWN, True)
        try:
            self.alone()
        finally:
            delattr(envs, OWN)

    def _step(self) -> None:
        if not self._engine.has_unfinished_requests():
            self._add_requests()
        self._engine.step()

    def _add_requests(self) -> None:
        from vllm import SamplingParams

        decoding = SamplingParams(temperature=0.0, max_tokens=1900, ignore_eos=True)
        for number in range(ROWS):
            self._engine.add_request(str(number), {"prompt_token_ids": [5, 6, 7]}, decoding)


def measure(name: str, dtype: str, *, wall: bool) -> None:
    """Print the table of one model and dtype."""
    size = SIZES[name]
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(ENVIRONMENT | {"NANWATCH_JOURNAL": f"{place}/journal"})
        os.environ.pop(OWN, None)
        with Steps(write_model(Path(place), VOCABULARY, positions=2048), dtype, size) as steps:
            rounds, aside = _take_turns(steps, size.rounds, wall=wall)
    print_table(
        f"a step of vLLM, the {name} model, logits [{ROWS}, {VOCABULARY}] {dtype}, divided by one without",
        [
            Line("with nanwatch", _ratio(rounds, "nanwatch", "alone"), GOAL),
            Line(f"with {OWN}", _ratio(rounds, "own", "alone")),
            Line("nanwatch / vLLM's own", _ratio(rounds, "nanwatch", "own"), AtMost(1.0)),
            Line("without, once more", _ratio(rounds, "again", "alone")),
            Line("one without, microseconds", _microseconds(rounds.seconds["alone"])),
            Line("what nanwatch adds, microseconds", _microseconds(_added(rounds))),
            Line("... of it on its own threads", Spread(*[aside * 1e6] * 3)),
        ],
        OF_THE_MEDIAN,
    )


def _take_turns(steps: Steps, rounds: int, *, wall: bool) -> tuple[Rounds, float]:
    """Return what a step took, and how much of it on nanwatch's own threads: on the wall nothing."""
    contestants: dict[str, Any] = {
        "alone": steps.alone,
        "nanwatch": steps.with_nanwatch,
        "own": steps.with_vllms_own,
        "again": steps.alone,
    }
    clock = time.perf_counter if wall else time.thread_time
    # A block of no length has the fewest calls; the fastest stands for it: other load only slows a step down.
    taken = take_turns(
        contestants, rounds=rounds, block_seconds=0.0, stands_for_block=min, clock=clock
    ).seconds
    aside = 0.0 if wall else steps.seconds_aside()
    return Rounds({**taken, "nanwatch": [seconds + aside for seconds in taken["nanwatch"]]}), aside


def _ratio(rounds: Rounds, name: str, base: str) -> Spread:
    return Spread.of_median(rounds.ratios(name, base))


def _microseconds(seconds: Iterable[float]) -> Spread:
    return Spread.of_median(one * 1e6 for one in seconds)


def _added(rounds: Rounds) -> Iterable[float]:
    pairs = zip(rounds.seconds["nanwatch"], rounds.seconds["alone"], strict=True)
    return (watched - alone for watched, alone in pairs)


def main(options: list[str]) -> None:
    """Measure each model and dtype in an interpreter of its own: there is one engine a process."""
    for name, dtype in product(SIZES, ("float32", "bfloat16")):
        command = [sys.executable, "-m", "benchmarks.vllm_overhead", "--one", name, dtype, *options]
        subprocess.run(command, check=True)  # noqa: S603  ourselves
        print()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(*sys.argv[2:4], wall="--wall" in sys.argv)
    else:
        main(sys.argv[1:])
