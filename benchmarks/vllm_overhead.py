"""What nanwatch costs a step of a real vLLM, beside what vLLM's own check costs: `make bench-vllm`.

A model of next to nothing with a real vocabulary, 8 requests that decode, in this process, on the
CPU: the forward is as short as it gets, so that the count weighs as much as it ever will. The
same engine takes turns: as it is, with nanwatch, with VLLM_COMPUTE_NANS_IN_LOGITS. It needs vllm, so
it is not among `python -m benchmarks`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import AtMost, Line, print_table, take_turns
from tests.engines.vllm.tiny import write_model

ROWS, VOCABULARY = 8, 128_256
ROUNDS, BLOCK_SECONDS = 151, 0.04
GOAL = AtMost(1.02)
OWN = "VLLM_COMPUTE_NANS_IN_LOGITS"
WRAPPED = ("execute_model", "sample_tokens", "_get_prompt_logprobs_dict")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "NANWATCH_ENABLED": "1",
}


class Steps:
    """One engine, and the three ways in which a step of it is taken."""

    def __init__(self, model: Path, dtype: str) -> None:
        from vllm import LLM

        llm = LLM(
            str(model),
            load_format="dummy",
            enforce_eager=True,
            dtype=dtype,
            max_model_len=2048,
            max_num_seqs=ROWS,
            kv_cache_memory_bytes=256 << 20,
        )
        self._engine = llm.llm_engine
        self._runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        self._watching = {name: vars(self._runner)[name] for name in WRAPPED}

    def alone(self) -> None:
        """Take a step without anybody looking."""
        for name in WRAPPED:
            vars(self._runner).pop(name, None)
        self._step()

    def with_nanwatch(self) -> None:
        """Take a step with nanwatch."""
        vars(self._runner).update(self._watching)
        self._step()

    def with_vllms_own(self) -> None:
        """Take a step with vLLM's own check, which it asks its environment for in each step."""
        for name in WRAPPED:
            vars(self._runner).pop(name, None)
        os.environ[OWN] = "1"
        try:
            self._step()
        finally:
            del os.environ[OWN]

    def _step(self) -> None:
        if not self._engine.has_unfinished_requests():
            self._add_requests()
        self._engine.step()

    def _add_requests(self) -> None:
        from vllm import SamplingParams

        decoding = SamplingParams(temperature=0.0, max_tokens=1900, ignore_eos=True)
        for number in range(ROWS):
            self._engine.add_request(str(number), {"prompt_token_ids": [5, 6, 7]}, decoding)


def measure(dtype: str) -> None:
    """Print the table of one dtype."""
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(ENVIRONMENT | {"NANWATCH_JOURNAL": f"{place}/journal"})
        os.environ.pop(OWN, None)
        steps = Steps(write_model(Path(place), VOCABULARY, positions=2048), dtype)
        contestants: dict[str, Any] = {
            "alone": steps.alone,
            "nanwatch": steps.with_nanwatch,
            "own": steps.with_vllms_own,
        }
        rounds = take_turns(contestants, rounds=ROUNDS, block_seconds=BLOCK_SECONDS)
    print_table(
        f"a step of vLLM, logits [{ROWS}, {VOCABULARY}] {dtype}, divided by one without",
        [
            Line("with nanwatch", rounds.ratio("nanwatch", "alone"), GOAL),
            Line(f"with {OWN}", rounds.ratio("own", "alone")),
            Line("nanwatch / vLLM's own", rounds.ratio("nanwatch", "own"), AtMost(1.0)),
            Line("one without, microseconds", rounds.microseconds("alone")),
        ],
    )


def main(dtypes: list[str]) -> None:
    """Measure each dtype in an interpreter of its own: there is one engine a process."""
    for dtype in dtypes or ["float32", "bfloat16"]:
        subprocess.run([sys.executable, "-m", "benchmarks.vllm_overhead", "--one", dtype], check=True)  # noqa: S603  ourselves
        print()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2])
    else:
        main(sys.argv[1:])
