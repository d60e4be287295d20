"""Every row of every forward, in every mode of generate(): whose a NaN there is.

The tables are worked out by hand from what generate() reads; notation.py says how they are written.
Three prompts, a of 4 tokens, b of 2 and c of 3, and four new tokens, unless a mode says otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria
from transformers.generation.utils import DeferredStopCheck

import nanwatch
from tests.engines.huggingface import tiny
from tests.engines.huggingface.notation import NOBODY, Cell, Planted, cells_of, count
from tests.engines.written import Written

GREEDY = {"do_sample": False}
SAMPLE = {"do_sample": True, "remove_invalid_values": True}  # so that multinomial does not raise
BEAMS = {**GREEDY, "num_beams": 2, "early_stopping": False}
LOOKUP = {**GREEDY, "prompt_lookup_num_tokens": 2, "max_new_tokens": 7}
ABC = ([7, 8, 9, 10], [7, 8], [11, 12, 13])
NINES = ([9, 9, 9, 9, 9],)  # what is liked follows: every draft of 9s is accepted
CHILDREN = {"A": "a-0", "B": "a-1", "C": "b-0", "D": "b-1", "E": "c-0", "F": "c-1"}
B_ENDS_AT_2 = frozenset({(2, 1)})

MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny.tiny_llama,
    "llama, all positions": lambda: tiny.tiny_llama(tiny.AllPositionsLlama),
    "llama without an end of sequence": lambda: tiny.tiny_llama(eos=None),
    "t5": tiny.tiny_t5,
    "bart": tiny.tiny_bart,
}


@cache
def model_of(name: str) -> Any:
    return MODELS[name]()


class StopsB(StoppingCriteria):
    """A criterion of the caller's own: the second sequence is done at 6 tokens."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.tensor([row == 1 and input_ids.shape[1] >= 6 for row in range(input_ids.shape[0])])


class Replaces(LogitsProcessor):
    """Puts a number where a score is NaN; one that is low enough loses the beam."""

    def __init__(self, number: float) -> None:
        self._number = number

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        return torch.where(scores.isnan(), self._number, scores)


class Streamer:
    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


def own_loop(model: Any, input_ids: Tensor, **_: Any) -> Tensor:
    return torch.cat([input_ids, model(input_ids=input_ids).logits[:, -1].argmax(-1)[:, None]], dim=-1)


def later_turn(_model: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    """A twin of the model has read and answered the prompts: only what its cache lacks is read."""
    twin = tiny.tiny_llama()
    with Planted(()).in_head_of(twin):
        said = twin.generate(**batch, **GREEDY, max_new_tokens=2, return_dict_in_generate=True)
    mask = torch.cat([batch["attention_mask"], torch.ones(3, 2, dtype=torch.long)], dim=-1)
    return {"input_ids": said.sequences, "attention_mask": mask, "cache": said.cache}


def as_embeddings(model: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"]), **batch, "input_ids": None}


def as_decoded(model: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    """What the decoder has said so far is given too: [0, 9, 9, 9, 9]."""
    said = torch.tensor([[tiny.PAD, 9, 9, 9, 9]] * len(batch["input_ids"]))
    return {**batch, "decoder_input_ids": said}


def helped_by_itself(model: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    return {**batch, "assistant_model": tiny.assistant(model)}


def drafting_twos(model: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    tiny.assistant(model)
    return dict(batch)


@dataclass(frozen=True)
class Mode:
    """How generate() is called, and whose the rows of its forwards are."""

    forwards: tuple[str, ...]
    how: dict[str, Any] = field(default_factory=lambda: GREEDY)
    model: str = "llama"
    texts: tuple[list[int], ...] = ABC
    padded: str = "left"
    ends: frozenset[tuple[int, int]] = frozenset()
    given: Callable[[Any, dict[str, Tensor]], dict[str, Any]] = lambda _, batch: dict(batch)
    names: dict[str, str] = field(default_factory=dict)  # the id of a letter, where it is not the letter

    def id_of(self, letter: str, run: int) -> str:
        return f"{run}{self.names.get(letter, letter)}"


DECODE = ("decode a b c",) * 3
B_ENDED = ("decode a b c", "decode a - c", "decode a - c")
TWO_BEAMS = ("prefill a a b b c c", *("decode a a b b c c",) * 3)
VERIFIED = ("prefill aaa", "verify aaa", "verify a")  # 5 + 3 + 3 + 1 tokens, K = 2, 2, 0
DRAFTED = ("draft -", "draft -", VERIFIED[0], "draft -", "draft -", *VERIFIED[1:])

MODES = {
    "greedy": Mode(("prefill a b c", *DECODE)),
    "greedy, b ends": Mode(("prefill a b c", *B_ENDED), ends=B_ENDS_AT_2),
    "sampling": Mode(("prefill a b c", *DECODE), SAMPLE),
    "sampling, b ends": Mode(("prefill a b c", *B_ENDED), SAMPLE, ends=B_ENDS_AT_2),
    "sampling, two returned": Mode(
        ("prefill A B C D E F", *("decode A B C D E F",) * 3),
        {**SAMPLE, "num_return_sequences": 2},
        names=CHILDREN,
    ),
    "sampling, two returned, b-0 ends": Mode(
        ("prefill A B C D E F", *("decode A B - D E F",) * 3),
        {**SAMPLE, "num_return_sequences": 2},
        names=CHILDREN,
        ends=frozenset({(1, 2)}),
    ),
    "a criterion ends b": Mode(("prefill a b c", *B_ENDED), {**GREEDY, "stopping_criteria": [StopsB()]}),
    # Without an end of sequence generate() has nothing to pad with: what follows is in b's answer.
    "a criterion ends b, nothing is padded": Mode(
        ("prefill a b c", *DECODE),
        {**GREEDY, "stopping_criteria": [StopsB()]},
        "llama without an end of sequence",
    ),
    "beams": Mode(TWO_BEAMS, BEAMS),
    "beams, two returned": Mode(TWO_BEAMS, {**BEAMS, "num_return_sequences": 2}),
    "beams, sampled": Mode(TWO_BEAMS, {**BEAMS, **SAMPLE}),
    "beams, those with a NaN are dropped": Mode(
        TWO_BEAMS, {**BEAMS, "logits_processor": LogitsProcessorList([Replaces(-1e9)])}
    ),
    # b's search is over after forward 2, but its beams are read to the end: see the test below.
    "beams, b ends": Mode(TWO_BEAMS, {**BEAMS, "early_stopping": True}, ends=frozenset({(2, 2), (2, 3)})),
    "beams, no cache": Mode(TWO_BEAMS, {**BEAMS, "use_cache": False}),
    "prompt lookup": Mode(VERIFIED, LOOKUP, texts=NINES),
    "prompt lookup, sampled": Mode(VERIFIED, {**LOOKUP, **SAMPLE, "top_k": 1}, texts=NINES),
    "prompt lookup, all positions": Mode(
        ("prefill ....aaa", *VERIFIED[1:]), LOOKUP, "llama, all positions", NINES
    ),
    "prompt lookup, t5": Mode(("prefill ....aaa", *VERIFIED[1:]), LOOKUP, "t5", NINES, given=as_decoded),
    "an assistant that is the model": Mode(
        DRAFTED, {**GREEDY, "max_new_tokens": 7}, texts=NINES, given=helped_by_itself
    ),
    "early exit": Mode(
        DRAFTED,
        {**GREEDY, "max_new_tokens": 7, "assistant_early_exit": 1},
        texts=NINES,
        given=drafting_twos,
    ),
    "right-padded": Mode(("prefill a b c", *DECODE), padded="right"),
    "right-padded, all positions": Mode(
        ("prefill ...a ...b ...c", *DECODE), model="llama, all positions", padded="right"
    ),
    "all positions": Mode(("prefill ...a ...b ...c", *DECODE), {**GREEDY, "logits_to_keep": 0}),
    "all positions, b ends": Mode(
        ("prefill ...a ...b ...c", *B_ENDED), model="llama, all positions", ends=B_ENDS_AT_2
    ),
    "all positions, no cache": Mode(
        ("prefill ...a ...b ...c", "decode ....a ....b ....c"),
        {**GREEDY, "use_cache": False, "max_new_tokens": 2},
        "llama, all positions",
    ),
    "all positions, beams": Mode(
        ("prefill ...a ...a ...b ...b ...c ...c", *TWO_BEAMS[1:]), BEAMS, "llama, all positions"
    ),
    "embeddings for a prompt": Mode(("prefill a b c", *DECODE), given=as_embeddings),
    "a later turn": Mode(("prefill a b c", *DECODE), given=later_turn),
    "static cache": Mode(
        ("prefill a b c", *B_ENDED), {**GREEDY, "cache_implementation": "static"}, ends=B_ENDS_AT_2
    ),
    # Prompts of 4, 2 and 3 tokens in chunks of 2: b has not begun when the first chunk ends.
    "chunks": Mode(("prefill a - c", "prefill a b c", *DECODE), {**GREEDY, "prefill_chunk_size": 2}),
    "chunks, static cache": Mode(
        ("prefill a - c", "prefill a b c", *DECODE),
        {**GREEDY, "prefill_chunk_size": 2, "cache_implementation": "static"},
    ),
    "chunks, beams": Mode(("prefill a a - - c c", *TWO_BEAMS), {**BEAMS, "prefill_chunk_size": 2}),
    # Chunks of 3 and 1: b has ended where the first one ends; the last position of all is read.
    "chunks, right-padded": Mode(
        ("prefill a - c", "prefill a b c", *DECODE), {**GREEDY, "prefill_chunk_size": 3}, padded="right"
    ),
    "guidance": Mode(
        ("prefill a b", "prefill .a .b", "decode a b", "decode a b"),
        {
            **GREEDY,
            "guidance_scale": 2.0,
            "negative_prompt_ids": torch.tensor([[7, 8], [7, 9]]),
            "max_new_tokens": 2,
        },
        texts=([5, 6], [5, 6]),
    ),
    "invalid values are removed": Mode(("prefill a b c", *DECODE), {**GREEDY, "remove_invalid_values": True}),
    "a processor hides the NaN": Mode(
        ("prefill a b c", *DECODE), {**GREEDY, "logits_processor": LogitsProcessorList([Replaces(0.0)])}
    ),
    "streamed": Mode(("prefill a", *("decode a",) * 3), {**GREEDY, "streamer": Streamer()}, texts=ABC[:1]),
    "t5": Mode(("prefill a b c", *B_ENDED), model="t5", ends=B_ENDS_AT_2),
    "t5, beams": Mode(TWO_BEAMS, BEAMS, "t5"),
    "t5 has said something": Mode(("prefill ....a ....b ....c", *DECODE), model="t5", given=as_decoded),
    "bart": Mode(("prefill a b c", *B_ENDED), model="bart", ends=B_ENDS_AT_2),
    "bart, beams": Mode(TWO_BEAMS, BEAMS, "bart"),
    "a loop of the caller's own, one prompt": Mode(
        ("prefill aaaa",), {"custom_generate": own_loop}, texts=ABC[:1]
    ),
    "a loop of the caller's own": Mode(("prefill ???? ???? ????",), {"custom_generate": own_loop}),
}


def run(mode: Mode, number: int, cell: Cell | None = None) -> tuple[Planted, Tensor]:
    """Call generate() once, with ids that begin with `number`."""
    torch.manual_seed(1)
    model = model_of(mode.model)
    batch = mode.given(model, tiny.prompts(*mode.texts, padded=mode.padded))
    planted = Planted(mode.forwards, cell, mode.ends)
    with (
        planted.in_head_of(model),
        nanwatch.request_ids([f"{number}{letter}" for letter in "abc"[: len(mode.texts)]]),
    ):
        out = model.generate(**batch, **{"max_new_tokens": 4, **mode.how})
    return planted, out


def check(mode: Mode, written: Written) -> None:
    """Plant a NaN into every cell of the table, one run each, and see whom it was charged to."""
    expected: dict[str, tuple[str, int, int, int]] = {}
    with nanwatch.watch_generate(model_of(mode.model)) as handle:
        clean, _ = run(mode, 0)
        clean.check_shapes()
        totals = written.totals(handle.probe)
        assert totals.rows == len(cells_of(mode.forwards)) - count(mode.forwards, "-.")
        assert (totals.nan_rows, totals.padding_nan_rows) == (0, 0)
        steps = len(clean.shapes)
        for number, cell in enumerate(cells_of(mode.forwards), start=1):
            if cell.owner not in NOBODY:
                expected[mode.id_of(cell.owner, number)] = (cell.phase, steps + cell.forward, 1, 1)
            steps += len(run(mode, number, cell)[0].shapes)
        totals, found = written.report(handle.probe)
    assert {name: (r.phase, r.first_step, r.rows, r.values) for name, r in found.items()} == expected
    assert all(request.finished for request in found.values())
    assert totals.padding_nan_rows == count(mode.forwards, "-")
    assert totals.unattributed_nan_rows == count(mode.forwards, "?")
    assert totals.dropped_steps == {}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_every_row_of_every_forward_is_whose_the_table_says(mode: Mode, written: Written) -> None:
    check(mode, written)


class EventOfADevice:
    """Stands for an event of a GPU: this test's copies are done at once."""

    def __init__(self, device: Any, *, blocking: bool) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


def test_a_stop_that_is_noticed_a_step_late_makes_a_forward_of_padding(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the host need not wait, generate() on some devices asks only after the next forward.
    monkeypatch.setattr(DeferredStopCheck, "is_supported", staticmethod(lambda *_, **__: True))
    monkeypatch.setattr(torch, "Event", EventOfADevice)
    forwards = ("prefill a b c", "decode a b c", "decode a - c", "decode - - -")
    ends = frozenset({(2, 1), (3, 0), (3, 2)})
    check(Mode(forwards, {**GREEDY, "max_new_tokens": 8}, ends=ends), written)
