"""`python -m benchmarks.architectures`: every causal LM of Transformers, into docs/architectures.md.

Each is tried in a process of its own, forked from one that has Transformers imported: a crash, or more than
SECONDS, costs that architecture and no other. With names it tries those alone and writes nothing.
"""

import importlib.metadata
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

SECONDS = 120.0
PASSES = "passes"
PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"

_HEAD = """# Architectures

Every causal LM that Transformers {transformers} lists, built tiny, on a CPU with torch {torch}.
`make architectures` tries them and writes this page; what each has to show stands at the top
of benchmarks/architecture.py: a clean run without NaN and with unchanged tokens, and one NaN, planted in one
row of the raw logits at the second forward, charged to the request that owns the row.

{summary}.

| model_type | class | result |
|---|---|---|
"""


def main(names: list[str]) -> int:
    """Try all of them, or those that are named; 1 where nanwatch failed one."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from benchmarks.architecture import FAILS, Verdict

    _import_what_all_need()
    verdicts = [Verdict(*fields) for fields in _try_all(names or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))]
    counted = Counter(verdict.result for verdict in verdicts)
    print(", ".join(f"{result} {number}" for result, number in counted.most_common()))
    if not names:
        PAGE.write_text(page_of(verdicts))
        print(f"written: {PAGE}")
    return int(counted[FAILS] > 0)


def page_of(verdicts: Iterable[tuple[str, str, str, str, int]]) -> str:
    """Return docs/architectures.md: those that do not pass first, and why."""
    rows = sorted(verdicts, key=lambda verdict: (verdict[2] == PASSES, verdict[0]))
    counted = Counter(result for _, _, result, _, _ in rows)
    head = _HEAD.format(
        transformers=importlib.metadata.version("transformers"),
        torch=importlib.metadata.version("torch").partition("+")[0],
        summary=f"Of {len(rows)}: "
        + ", ".join(f"{result} {count}" for result, count in counted.most_common()),
    )
    return head + "".join(
        f"| {name} | {kind} | {result}{f': {why}' if why else ''} |\n" for name, kind, result, why, _ in rows
    )


def _try_all(names: list[str]) -> list[tuple[str, str, str, str, int]]:
    found = []
    for number, name in enumerate(names, start=1):
        verdict = _in_a_process_of_its_own(name)
        found.append(verdict)
        _, kind, result, why, weights = verdict
        print(f"{number:>4}/{len(names)}  {name:<28} {kind:<36} {weights:>10,}  {result}  {why}", flush=True)
    return found


def _in_a_process_of_its_own(name: str) -> tuple[str, str, str, str, int]:
    """Return the verdict, also where the process dies or does not end."""
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe(duplex=False)
    process = forking.Process(target=_try_one, args=(name, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(SECONDS):
            return name, "", "cannot be built", f"not done after {SECONDS:g} s", 0
        verdict: tuple[str, str, str, str, int] = ours.recv()
    except EOFError:
        process.join()
        return name, "", "cannot be built", f"the process ended with {process.exitcode}", 0
    else:
        return verdict
    finally:
        process.kill()
        process.join()


def _import_what_all_need() -> None:
    """Let a model generate here, so that no forked process has to import it all anew."""
    import torch

    from benchmarks.architecture import build, generate

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    _be_quiet()
    generate(build("llama"))


def _try_one(name: str, answer: Connection) -> None:
    from benchmarks.architecture import try_architecture

    answer.send(tuple(try_architecture(name)))


def _be_quiet() -> None:
    import logging
    import warnings

    from transformers.utils import logging as theirs

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    theirs.set_verbosity(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
