"""Containment on a GPU, where it is refused until this was run: real streams, and both ways of batching."""

from typing import Any

import pytest
import torch

import nanwatch
from nanwatch.engines.huggingface.continuous import refusals
from tests.engines.huggingface.batches import Prompt, add, manager_of, wishes
from tests.engines.huggingface.flaky import Fault, flaky
from tests.engines.huggingface.sessions import Session, talkative_llama
from tests.engines.written import Written

PROMPTS = {f"r{i}": [5 + i, 6 + i, 7 + 2 * i, 8 + i, 11] for i in range(8)}
NEXT = {f"next-{i}": [*PROMPTS[f"r{i % 8}"], 30 + i] for i in range(10)}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return talkative_llama().cuda()


def answers(session: Session, prompts: dict[str, list[int]]) -> dict[str, Any]:
    return session.ask({name: Prompt(tokens, 8) for name, tokens in prompts.items()})


@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("is_async", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("place", ["embedding", "head"])
def test_one_of_eight_ends_and_the_others_answer_as_before(  # noqa: PLR0913, PLR0917  a table
    model: Any,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    is_async: bool,  # noqa: FBT001
    sampling: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setenv("NANWATCH_ON_NAN", "abort")
    monkeypatch.setattr(refusals, "DEVICES", ("cuda",))
    how = {"allow_block_sharing": True, "auto_switch_to_flash": False, "use_cuda_graph": False}
    with nanwatch.watch_generate(model) as handle:
        manager = manager_of(model, use_async_batching=is_async, generation=wishes(do_sample=sampling), **how)
        manager.start()
        try:
            session = Session(manager)
            alone = {
                name: answers(session, {name: tokens})[name] for name, tokens in (PROMPTS | NEXT).items()
            }
            with flaky(model, manager, [Fault("r3", 4, place)]):
                add(manager, {name: Prompt(tokens, 8) for name, tokens in PROMPTS.items()})
                found = session.results(8)
            later = answers(session, NEXT)
            assert session.cache_is_finite()
            assert session.all_blocks_are_back()
            totals, corrupted = written.report(handle.probe)
        finally:
            manager.stop(block=True, timeout=60, hard_stop=True)
    assert {name for name, output in found.items() if output.error is not None} == {"r3"}
    assert (list(corrupted), totals.aborted_requests) == (["r3"], 1)
    for name, output in (found | later).items():
        if name != "r3" and not sampling:
            assert output.generated_tokens == alone[name].generated_tokens
