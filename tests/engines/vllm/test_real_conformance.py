"""A real vLLM, one NaN in one exact row: nanwatch has the right request, at the step it happened.

What is right stands in cells.py, worked out by hand. vLLM's own counter is printed beside it
(pytest -s): where it differs is why nanwatch looks at raw logits and at each row's owner.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nanwatch.journal.line import CorruptedRequest
from tests.engines.vllm.cells import CELLS, Cell
from tests.engines.vllm.conftest import Run
from tests.seen import read

V2 = [
    pytest.mark.vllm_all,
    pytest.mark.skipif(find_spec("triton") is None, reason="the second runner needs triton's interpreter"),
]
CONFIGURATIONS = [
    ("v1", "sync", ""),
    ("v1", "sync", "speculative"),
    ("v1", "async", ""),  # with the ngram drafter of these cells V1 refuses asynchronous scheduling
    *(
        pytest.param("v2", scheduling, speculative, marks=V2)
        for scheduling in ("sync", "async")
        for speculative in ("", "speculative")
    ),
]


@pytest.mark.parametrize(("runner", "scheduling", "speculative"), CONFIGURATIONS)
def test_each_nan_is_charged_to_its_request_at_its_step(  # noqa: PLR0913, PLR0917  one configuration of an engine
    run: Run, tiny_model: Path, tmp_path: Path, runner: str, scheduling: str, speculative: str
) -> None:
    arguments = [str(tiny_model), runner, scheduling, *filter(None, [speculative])]
    ran = run("engine", *arguments)
    expected = [cell for cell in CELLS if cell.speculative == bool(speculative)]
    assert [row["cell"] for row in ran] == [cell.name for cell in expected]
    found = _by_step(tmp_path / "journal")
    _print_table(f"{runner} {scheduling} {speculative}", ran, found)
    for cell, row in zip(expected, ran, strict=True):
        _check(cell, row, found)
    assert len(found) == len(expected)


def _by_step(journal: Path) -> dict[int, CorruptedRequest]:
    seen = read(journal)
    assert (seen.totals.dropped_steps, seen.totals.unattributed_nan_rows) == ({}, 0)
    assert seen.totals.corrupted_requests == len(seen.requests)
    return {request.first_step: request for request in seen.requests}


def _check(cell: Cell, row: Mapping[str, Any], found: Mapping[int, CorruptedRequest]) -> None:
    (planted,) = row["planted"]
    request = found[planted]
    assert (request.shown_id, request.phase, request.rows, request.values) == (
        cell.corrupted,
        cell.phase,
        1,
        7,
    )
    if cell.step is not None:
        assert planted - row["steps_before"] == cell.step


def _print_table(title: str, ran: list[dict[str, Any]], found: Mapping[int, CorruptedRequest]) -> None:
    print(f"\n{title.strip()}")
    print(f"  {'cell':<22}{'nanwatch':<28}{'vLLM counts':<13}vLLM blames")
    for row in ran:
        (planted,) = row["planted"]
        request = found.get(planted)
        ours = f"{request.shown_id} ({request.phase}, step {planted})" if request else "nothing"
        theirs = ", ".join(row["vllm_blamed"]) or "nobody"
        print(f"  {row['cell']:<22}{ours:<28}{row['vllm_counted']:<13}{theirs}")
