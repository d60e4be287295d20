"""watch_generate(): phases, counts and ids, and what it leaves alone; test_conformance.py has the rows."""

import copy
import logging
import pickle
import re
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList

import nanwatch
from nanwatch import NanLogitsError, NanProbe
from nanwatch.engines.handle import Watch
from nanwatch.engines.huggingface.replaced_method import ReplacedMethod
from tests.engines.huggingface.tiny import EOS, LIKED, PAD, POISON, Plan, V, following, prompts, tiny_llama
from tests.engines.written import Written

GREEDY = {"do_sample": False}
SAMPLE = {"do_sample": True, "remove_invalid_values": True}  # so that multinomial does not raise
THREE = ([7, 8, 9, 10], [7, 8], [11, 12, 13])
ABC = ["a", "b", "c"]


@pytest.fixture(scope="module")
def shared_model() -> Any:
    return tiny_llama()


@pytest.fixture
def model(shared_model: Any) -> Any:
    """The tiny model; a test that leaves it watched fails here."""
    yield shared_model
    assert not any(isinstance(value, ReplacedMethod) for value in vars(shared_model).values())
    assert not shared_model._forward_hooks


def generate(model: Any, *texts: list[int], plan: Plan | None = None, **kwargs: Any) -> Tensor:
    """Four new tokens for each prompt, unless the plan ends one earlier."""
    with following(model, plan or Plan()):
        result = model.generate(**prompts(*texts), **{"max_new_tokens": 4, **kwargs})
    assert isinstance(result, Tensor)
    return result


@dataclass(frozen=True)
class Case:
    """A run over a, b and c of THREE (a is 4 tokens long, b 2, c 3), and what has to be written.

    `corrupted` maps an id to (phase, first step, rows, values) of its NaNs.
    """

    how: dict[str, Any] = field(default_factory=lambda: GREEDY)
    plan: Plan = field(default_factory=Plan)
    corrupted: dict[str, tuple[str, int, int, int]] = field(default_factory=dict)
    padding_nan_rows: int = 0
    requests: int = 3
    rows: int = 12  # 3 sequences of 4 tokens
    texts: tuple[list[int], ...] = THREE
    ids: tuple[str, ...] = ("a", "b", "c")


ENDS_B_AT_2 = frozenset({(2, 1)})

CASES = {
    "clean": Case(),
    "two rows, two steps": Case(
        plan=Plan(nan={(2, 0): 1, (3, 0): 2, (3, 1): V}),
        corrupted={"a": ("decode", 2, 2, 3), "b": ("decode", 3, 1, V)},
    ),
    "clean, b ends early": Case(plan=Plan(eos=ENDS_B_AT_2), rows=10),
    "NaN in a finished row": Case(
        plan=Plan(nan={(3, 1): V, (4, 1): V}, eos=ENDS_B_AT_2), rows=10, padding_nan_rows=2
    ),
    "NaN in the step that ends the row": Case(
        how=SAMPLE, plan=Plan(nan={(2, 1): 1}, eos=ENDS_B_AT_2), rows=10, corrupted={"b": ("decode", 2, 1, 1)}
    ),
    "returned sequences": Case(
        how={**SAMPLE, "num_return_sequences": 2},
        plan=Plan(nan={(2, 3): 1, (3, 4): 2}),
        corrupted={"b-1": ("decode", 2, 1, 1), "c-0": ("decode", 3, 1, 2)},
        requests=6,
        rows=24,
    ),
    "processors make -inf": Case(
        how={
            **GREEDY,
            "suppress_tokens": list(range(10, V)),
            "bad_words_ids": [[4]],
            "top_k": 1,
            "do_sample": True,
        }
    ),
    # 2 beams of each prompt: rows 0 and 1 are a's, 2 and 3 b's, 4 and 5 c's.
    "beams": Case(
        how={**GREEDY, "num_beams": 2, "early_stopping": False},
        plan=Plan(nan={(1, 3): 1, (2, 4): 2, (2, 5): 3}),
        corrupted={"b": ("prefill", 1, 1, 1), "c": ("decode", 2, 2, 5)},
        rows=24,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_charges_each_row_to_its_request(case: Case, model: Any, written: Written) -> None:
    torch.manual_seed(1)
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(list(case.ids)):
            generate(model, *case.texts, plan=case.plan, **case.how)
        totals, found = written.report(handle.probe)
    told = {name: (r.phase, r.first_step, r.rows, r.values) for name, r in found.items()}
    assert told == case.corrupted
    assert all(request.finished for request in found.values())
    assert (totals.requests, totals.rows) == (case.requests, case.rows)
    assert (totals.padding_nan_rows, totals.unattributed_nan_rows) == (case.padding_nan_rows, 0)
    assert totals.dropped_steps == {}


def test_the_table_ends_rows_where_it_says(model: Any) -> None:
    out = generate(model, *THREE, plan=Plan(eos=ENDS_B_AT_2))
    assert out[:, 4:].tolist() == [[LIKED] * 4, [LIKED, EOS, PAD, PAD], [LIKED] * 4]


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_poisoned_token_corrupts_its_request_in_every_step(row: int, model: Any, written: Written) -> None:
    texts = [list(text) for text in THREE]
    texts[row][-1] = POISON
    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(ABC):
        out = generate(model, *texts)
        found = written.corrupted(handle.probe)
    assert out[row, 4:].tolist() == [0] * 4, "NaN comes out as token 0"
    assert {name: (r.phase, r.rows, r.values) for name, r in found.items()} == {
        ABC[row]: ("prefill", 4, 4 * (V - 1))  # the plan writes one of V values anew
    }


def test_a_request_is_recorded_and_finished_where_sampling_raises(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(ABC), pytest.raises(RuntimeError, match="probability tensor"):
            generate(model, *THREE, plan=Plan(nan={(3, 1): V}), do_sample=True)
        assert written.corrupted(handle.probe)["b"].finished
        totals = written.totals(handle.probe)
        assert (totals.requests, totals.corrupted_requests) == (3, 1)
        with nanwatch.request_ids(ABC):
            generate(model, *THREE)
        assert written.totals(handle.probe).requests == 6


def test_an_id_used_again_by_the_next_call_is_another_request(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(["a"]):
        for _ in range(2):
            generate(model, [7, POISON])
        totals = written.totals(handle.probe)
    assert (totals.requests, totals.corrupted_requests) == (2, 2)


def test_fail_fast_raises_in_the_step_that_made_the_nan(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(ABC), pytest.raises(NanLogitsError) as raised:
            generate(model, *THREE, plan=Plan(nan={(2, 1): 3}))
        assert raised.value.requests == {"b": 3}
        assert written.totals(handle.probe).steps == 2
        assert written.corrupted(handle.probe)["b"].finished


def test_without_ids_each_prompt_is_a_request_of_its_own(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle:
        for _ in range(2):
            generate(model, *THREE, plan=Plan(nan={(2, 0): 1}))
        totals, found = written.report(handle.probe)
    assert (totals.requests, len(found)) == (6, 2)
    assert all(re.fullmatch(r"anon-[0-9a-f]{12}-\d+", name) for name in found)


@pytest.mark.parametrize("ids", [["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_a_wrong_number_of_ids_blames_nobody_and_swallows_nothing(
    ids: list[str], model: Any, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan(nan={(2, 0): 1, (3, 1): 2})
    expected = generate(model, *THREE, plan=plan)
    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(ids):
        for _ in range(2):
            assert torch.equal(generate(model, *THREE, plan=plan), expected)
        totals = written.totals(handle.probe)
    assert (totals.corrupted_requests, totals.unattributed_nan_rows) == (0, 4)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        f"nanwatch.watch_generate: {len(ids)} request ids for 3 prompts: NaN rows are counted as unattributed"
    ]


def test_takes_a_model_that_torch_compile_has_wrapped(written: Written) -> None:
    model: Any = torch.compile(tiny_llama(), backend="eager")
    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(["a", "b"]):
        model.generate(**prompts([7, 8, 9], [7, 8, POISON]), max_new_tokens=2)
        assert written.corrupted(handle.probe)["b"].rows == 2


class _Streamer:
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value: Tensor) -> None:
        self.tokens.extend(value.reshape(-1).tolist())

    def end(self) -> None:
        self.tokens.append(-1)


def test_streaming_is_watched_and_left_alone(model: Any, written: Written) -> None:
    streamer = _Streamer()
    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(["a"]):
        generate(model, [7, 8], plan=Plan(nan={(4, 0): 1}), streamer=streamer)
        assert written.corrupted(handle.probe)["a"].first_step == 4
    assert streamer.tokens == [7, 8, LIKED, LIKED, LIKED, 0, -1]


def test_generate_returns_the_same_with_and_without_a_watch(model: Any) -> None:
    plan = Plan(eos=ENDS_B_AT_2)
    expected = generate(model, *THREE, plan=plan)
    with nanwatch.watch_generate(model):
        assert torch.equal(generate(model, *THREE, plan=plan), expected)


def test_assisted_decoding_charges_the_one_request_it_serves(model: Any, written: Written) -> None:
    plan = Plan(nan={(2, 0): 3})
    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(["a"]):
        generate(model, [9, 9, 9, 9, 9], plan=plan, prompt_lookup_num_tokens=2, max_new_tokens=8)
        totals, found = written.report(handle.probe)
    assert {name: (r.phase, r.first_step, r.values) for name, r in found.items()} == {"a": ("verify", 2, 3)}
    assert totals.requests == 1
    assert totals.rows > totals.steps, "the forward that verifies a draft has several rows"


def test_a_decoding_loop_of_the_callers_own_is_counted_as_unattributed(
    model: Any, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    def reversed_rows(model: Any, input_ids: Tensor, **_: Any) -> Tensor:
        model(input_ids=input_ids.flip(0))
        return input_ids

    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(ABC):
        generate(model, *THREE, plan=Plan(nan={(1, 0): 2}), custom_generate=reversed_rows)
        totals = written.totals(handle.probe)
    assert (totals.corrupted_requests, totals.unattributed_nan_rows) == (0, 1)
    assert "the rows of generate() in mode 'custom_generate' are not known" in caplog.text


def test_a_forward_of_another_size_is_counted_as_unattributed(
    model: Any, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    class Forwards(LogitsProcessor):
        def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
            model(input_ids=torch.full((2, 3), POISON))
            return scores

    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(ABC):
        generate(model, *THREE, logits_processor=LogitsProcessorList([Forwards()]), max_new_tokens=2)
        totals = written.totals(handle.probe)
    assert (totals.corrupted_requests, totals.unattributed_nan_rows) == (0, 4)
    assert "2 samples in a call that began with 3" in caplog.text


def test_guidance_forwards_are_charged_to_the_request_they_guide(model: Any, written: Written) -> None:
    negative = prompts([7, 8], [7, POISON])["input_ids"]
    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(["a", "b"]):
        generate(model, [5, 6], [5, 6], guidance_scale=2.0, negative_prompt_ids=negative, max_new_tokens=2)
        assert list(written.corrupted(handle.probe)) == ["b"]


def test_a_call_inside_a_call_has_requests_of_its_own(model: Any, written: Written) -> None:
    class Nested(LogitsProcessor):
        def __init__(self) -> None:
            self.left = 1

        def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
            if self.left:
                self.left -= 1
                with nanwatch.request_ids(["inner"]):
                    model.generate(torch.tensor([[7, POISON]]), max_new_tokens=2)
            return scores

    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(ABC):
        generate(model, *THREE, logits_processor=LogitsProcessorList([Nested()]))
        totals, found = written.report(handle.probe)
    assert {name: (r.rows, r.finished) for name, r in found.items()} == {"inner": (2, True)}
    assert (totals.requests, totals.rows) == (4, 14)


def test_two_threads_that_generate_at_once_do_not_mix(model: Any, written: Written) -> None:
    both = threading.Barrier(2)

    def serve(name: str, row: int) -> None:
        texts = [[7, 8], [7, 8]]
        texts[row][1] = POISON
        both.wait(10)
        for call in range(15):
            with nanwatch.request_ids([f"{name}{call}-0", f"{name}{call}-1"]):
                model.generate(**prompts(*texts), max_new_tokens=3)

    with nanwatch.watch_generate(model) as handle:
        threads = [threading.Thread(target=serve, args=args) for args in (("x", 0), ("y", 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        totals, found = written.report(handle.probe)
    expected = {f"x{call}-0" for call in range(15)} | {f"y{call}-1" for call in range(15)}
    assert {name: r.rows for name, r in found.items()} == dict.fromkeys(expected, 3)
    assert (totals.requests, totals.steps) == (60, 90)


def test_a_forward_of_another_model_inside_a_call_is_not_the_calls_own(model: Any, written: Written) -> None:
    other = tiny_llama()

    class Asks(LogitsProcessor):
        def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
            other(torch.tensor([[7, POISON]] * 3))
            return scores

    with nanwatch.watch_generate(model) as handle, nanwatch.watch_generate(other, probe=handle.probe):
        generate(model, *THREE, logits_processor=LogitsProcessorList([Asks()]))
        totals = written.totals(handle.probe)
    assert (totals.steps, totals.nan_rows) == (4, 0)


def test_a_forward_outside_of_generate_is_not_counted(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle:
        model(torch.tensor([[7, POISON]]))
        generate(model, [7, 8], max_new_tokens=2)
        model(torch.tensor([[7, POISON]]))
        assert written.totals(handle.probe).steps == 2


def test_says_so_where_generate_runs_past_the_hook(
    model: Any, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    with nanwatch.watch_generate(model) as handle:
        generate(model, *THREE, custom_generate=lambda _model, input_ids, **_: input_ids)
        handle.probe.close()
    assert written.totals(handle.probe).dropped_steps == {"error": 1}
    assert "nothing was counted" in caplog.text


def test_an_error_of_ours_does_not_reach_generate(
    model: Any, written: Written, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = generate(model, *THREE)
    monkeypatch.setattr(NanProbe, "observe", lambda *_, **__: 1 / 0)
    with nanwatch.watch_generate(model) as handle:
        assert torch.equal(generate(model, *THREE), expected)
    assert written.totals(handle.probe).dropped_steps == {"error": 4}
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_closing_leaves_the_model_as_it_was(shared_model: Any, written: Written) -> None:
    model = shared_model
    before = {name: copy.copy(value) for name, value in vars(model).items()}
    handle = nanwatch.watch_generate(model)
    generate(model, *THREE)
    handle.close()
    handle.close()
    after = vars(model)
    assert set(after) == set(before)
    assert all(after[name] is value or after[name] == value for name, value in before.items())
    generate(model, [7, POISON])
    assert written.totals(handle.probe).corrupted_requests == 0


def test_closing_puts_back_a_generate_that_was_somebody_elses(model: Any) -> None:
    mine = lambda *args, **kwargs: type(model).generate(model, *args, **kwargs)  # noqa: E731
    model.generate = mine
    try:
        with nanwatch.watch_generate(model):
            assert isinstance(model.generate, ReplacedMethod)
        assert vars(model)["generate"] is mine
    finally:
        del model.generate


def test_closing_leaves_a_wrapper_that_was_put_on_since(model: Any, written: Written) -> None:
    with NanProbe("mine") as probe:
        handle = nanwatch.watch_generate(model, probe=probe)
        model.generate = later = partial(model.generate)
        try:
            handle.close()
            assert model.generate is later
            assert generate(model, *THREE).shape == (3, 8)
        finally:
            del model.generate
    totals = written.totals(probe)
    assert (totals.requests, totals.dropped_steps) == (0, {})


def test_watching_the_same_model_twice_is_refused_and_harmless(model: Any) -> None:
    with (
        nanwatch.watch_generate(model),
        pytest.raises(ValueError, match="LlamaForCausalLM is watched already"),
    ):
        nanwatch.watch_generate(model)


def test_a_module_that_cannot_generate_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Linear has no generate\(\)"):
        nanwatch.watch_generate(nn.Linear(2, 2))


def test_a_copy_of_a_watched_model_generates_by_itself_and_unwatched(model: Any, written: Written) -> None:
    with nanwatch.watch_generate(model) as handle:
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301  our own
            with torch.no_grad():
                other.get_input_embeddings().weight.fill_(float("nan"))
            assert other.generate(torch.tensor([[7, 8]]), max_new_tokens=2).tolist() == [[7, 8, 0, 0]]
        assert written.totals(handle.probe).steps == 0
        assert model.generate(torch.tensor([[7, 8]]), max_new_tokens=1).tolist() != [[7, 8, 0]]


def test_the_labels_name_the_model_and_the_runtime(model: Any) -> None:
    def labels(handle: Watch) -> tuple[str, str]:
        return handle.probe._labels.model_name, handle.probe._labels.runtime

    with nanwatch.watch_generate(model) as handle:
        assert labels(handle) == ("LlamaForCausalLM", "transformers")
    with nanwatch.watch_generate(model, model_name="llama") as handle:
        assert labels(handle) == ("llama", "transformers")
