"""The second runner where a CPU cannot run it: adaptive verification, sharded sampling, old batches."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanwatch import NanLogitsError, NanProbe
from nanwatch.engines.guard import Guard
from nanwatch.engines.vllm.client_ids import client_id
from nanwatch.engines.vllm.output import Outlet
from nanwatch.engines.vllm.v2 import V2
from tests.engines.vllm.batches import Array, Model, Second, logits, second_batch
from tests.engines.written import Written


@pytest.fixture
def probe() -> Iterator[NanProbe]:
    with NanProbe(runtime="vllm", raises_later=True, client_id=client_id) as made:
        yield made


def watched(runner: Second, probe: NanProbe) -> Second:
    guard = Guard("test", probe)
    V2(runner, Outlet(probe, guard), guard).install()
    return runner


def charged(written: Written, probe: NanProbe) -> dict[str, tuple[int, str]]:
    """Return NaN rows and phase of each corrupted request."""
    return {name: (entry.rows, entry.phase) for name, entry in written.corrupted(probe).items()}


def test_logits_are_seen_before_they_are_changed_in_place(probe: NanProbe, written: Written) -> None:
    runner = watched(Second(Model(logits(3, [1])), second_batch(["a", "b", "c"], [1, 1, 1])), probe)
    assert runner.sample_tokens() == "tokens"
    assert charged(written, probe) == {"b": (1, "decode")}


def test_infinities_and_wholly_masked_rows_are_shown_and_charged_to_nobody(
    probe: NanProbe, written: Written
) -> None:
    made = logits(3)
    made[0, 1], made[2] = float("inf"), float("-inf")
    watched(Second(Model(made), second_batch(["a", "b", "c"], [1, 1, 1])), probe).sample_tokens()
    totals = written.totals(probe)
    assert (totals.posinf_rows, totals.fully_masked_rows, totals.nan_rows) == (1, 1, 0)


def test_rows_of_drafts_belong_to_their_request(probe: NanProbe, written: Written) -> None:
    """A has rows 0 to 3, b 4, c 5 and 6; NaNs in 2 and 5, and in 7, which is padding."""
    runner = watched(Second(Model(logits(8, [2, 5, 7])), second_batch(["a", "b", "c"], [4, 1, 2])), probe)
    runner.sample_tokens()
    assert charged(written, probe) == {"a": (1, "verify"), "c": (1, "verify")}
    assert written.totals(probe).padding_nan_rows == 1


def test_under_adaptive_verification_the_device_says_whose_a_row_is(
    probe: NanProbe, written: Written
) -> None:
    """The host expects 4 + 4 rows. The device verifies 2 of a's, in slot 7, and 3 of b's, in slot 2."""
    batch = second_batch(
        ["a", "b"],
        [4, 4],
        idx_mapping=torch.tensor([7, 2]),
        expanded_idx_mapping=torch.tensor([7, 7, 2, 2, 2, 9, 9, 9]),
    )
    runner = Second(Model(logits(8, [3, 6])), batch)
    runner.adaptive_verification = object()
    watched(runner, probe).sample_tokens()
    assert charged(written, probe) == {"b": (1, "verify")}
    assert written.totals(probe).padding_nan_rows == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_prompt_in_chunks_is_prefilled(probe: NanProbe, written: Written, *, known: bool) -> None:
    """Older batches do not say so; there more tokens than rows tell it."""
    batch = second_batch(["a", "b"], [1, 1], tokens=[1, 9], is_prefilling_np=Array([False, True]))
    if not known:
        del batch.is_prefilling_np
    watched(Second(Model(logits(2, [1])), batch), probe).sample_tokens()
    assert charged(written, probe) == {"b": (1, "prefill")}


def test_prompt_logits_are_cut_by_request_and_the_sampled_row_is_left_out(
    probe: NanProbe, written: Written
) -> None:
    """A decodes token 0; b's prompt is tokens 1 to 5, all there is of it: prompt rows 1 to 4, 5 is sampled.

    The NaNs in rows 0 and 5 are of rows that were sampled, and are not counted a second time.
    """
    batch = second_batch(
        ["a", "b"],
        [1, 1],
        tokens=[1, 5],
        prefill_len_np=Array([3, 5]),
        num_computed_prefill_tokens_np=Array([3, 0]),
    )
    runner = Second(Model(logits(2), logits(6, [0, 3, 5])), batch, prompts=[(0, 6)])
    watched(runner, probe).sample_tokens()
    assert charged(written, probe) == {"b": (1, "prompt")}
    assert written.totals(probe).nan_rows == 1


def test_logits_of_other_hidden_states_are_nobodys(probe: NanProbe, written: Written) -> None:
    """A drafter may use the same head."""
    batch = second_batch(["a"], [1], tokens=[5], prefill_len_np=Array([5]))
    runner = Second(Model(logits(1), logits(4, [2])), batch)
    watched(runner, probe)
    runner.prompts = [(0, 4)]
    runner.hidden_states = torch.zeros(64, 4)
    sample = runner.sample
    runner.sample = lambda hidden, *rest: sample(hidden.clone(), *rest)  # type: ignore[method-assign]
    runner.sample_tokens()
    assert charged(written, probe) == {}
    assert (written.totals(probe).steps, written.totals(probe).dropped_steps) == (1, {})


def test_vllms_own_warm_up_is_never_a_step(probe: NanProbe, written: Written) -> None:
    """It samples made-up requests, over whatever memory holds."""
    for name in ("_warmup_0_", "req_0_" + "0f" * 16):
        watched(Second(Model(logits(1, [0])), second_batch([name], [1])), probe).sample_tokens()
    assert written.totals(probe).steps == 0


def all_to_all_logits(local: Any, _metadata: Any) -> Any:
    """Stands for the exchange between ranks; found as the runner's own module holds it."""
    return local


class Sharded(Second):
    """Samples as the second runner does where each rank owns some of the requests."""

    vocab_size = 6

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> None:
        _own, _, _, metadata = self.batch_sharder.shard_sampler_inputs(input_batch, grammar_output)
        all_to_all_logits(self.local, metadata)[:, : self.vocab_size].zero_()

    local: Any = None


def test_sharded_each_rank_sees_its_own_requests(
    probe: NanProbe, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This rank owns c alone, with two rows; the NaN in row 0 is in what pads the vocabulary."""
    monkeypatch.setitem(globals(), "all_to_all_logits", all_to_all_logits)
    runner = Sharded(Model(), second_batch(["a", "b", "c"], [1, 1, 2]))
    own = second_batch(["c"], [2])
    runner.batch_sharder = SimpleNamespace(shard_sampler_inputs=lambda *_: (own, None, None, None))
    runner.local = torch.zeros(2, 8)
    runner.local[0, 6:] = runner.local[1, 2] = float("nan")
    watched(runner, probe).sample_tokens()
    assert charged(written, probe) == {"c": (1, "verify")}
    assert written.totals(probe).nan_values == 1


def test_what_ended_is_told_with_the_next_step(probe: NanProbe, written: Written) -> None:
    runner = watched(Second(Model(logits(1, [0])), second_batch(["a"], [1])), probe)
    runner.sample_tokens()
    runner.execute_model(SimpleNamespace(finished_req_ids={"a", "unknown"}))
    assert written.corrupted(probe)["a"].finished


def test_a_runner_that_changed_costs_a_counted_step_and_nothing_else(
    probe: NanProbe, written: Written
) -> None:
    """A field is gone that the adapter reads."""
    batch = second_batch(["a"], [1])
    del batch.cu_num_logits_np
    runner = watched(Second(Model(logits(1, [0])), batch), probe)
    assert runner.sample_tokens() == "tokens"
    assert written.totals(probe).dropped_steps == {"error": 1}


def test_a_model_that_cannot_be_listened_to_costs_a_counted_step(probe: NanProbe, written: Written) -> None:
    """Its logits come from somewhere else."""

    class Closed:
        __slots__ = ()

        def compute_logits(self, _hidden_states: Any) -> Any:
            return logits(1, [0])

    runner = watched(Second(Model(), second_batch(["a"], [1])), probe)
    runner.model = Closed()  # type: ignore[assignment]
    assert runner.sample_tokens() == "tokens"
    assert written.totals(probe).dropped_steps == {"error": 1}


class Later:
    """An output that is still on its way."""

    def get_output(self) -> str:
        """Wait for it."""
        return "tokens"


@pytest.fixture
def failing_fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[NanProbe]:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    with NanProbe(runtime="vllm", raises_later=True, client_id=client_id) as made:
        yield made


def test_an_output_on_its_way_raises_when_it_is_asked_for(failing_fast: NanProbe, written: Written) -> None:
    """Not before: `sample_tokens` has to come to its end. From then on the engine refuses."""
    ids = ["cmpl-mine-0-5c0b6d4a", "cmpl-other-0-00000000"]
    runner = watched(Second(Model(logits(2, [0]), logits(2)), second_batch(ids, [1, 1])), failing_fast)
    runner.output = Later()
    output = runner.sample_tokens()
    with pytest.raises(NanLogitsError) as raised:
        output.get_output()
    assert raised.value.requests == {"mine": 2}
    assert list(written.corrupted(failing_fast)) == ids[:1]
    with pytest.raises(NanLogitsError, match="stopped at it in an earlier step"):
        runner.execute_model(SimpleNamespace(finished_req_ids=()))


def test_a_later_output_is_not_handed_out_after_the_raise(failing_fast: NanProbe) -> None:
    """With two steps in flight the second one's tokens would be taken for the next call's."""
    runner = watched(Second(Model(logits(1, [0]), logits(1)), second_batch(["a"], [1])), failing_fast)
    outputs = []
    for _ in range(2):
        runner.output = Later()
        outputs.append(runner.sample_tokens())
    for output in outputs:
        with pytest.raises(NanLogitsError):
            output.get_output()


def test_a_clean_step_is_handed_out(failing_fast: NanProbe) -> None:
    runner = watched(Second(Model(logits(1)), second_batch(["a"], [1])), failing_fast)
    runner.output = Later()
    assert runner.sample_tokens().get_output() == "tokens"
