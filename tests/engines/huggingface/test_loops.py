"""What the tables of test_conformance.py rest on, and loops that run around generate() or inside of it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    EncodecConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MusicgenConfig,
    MusicgenForConditionalGeneration,
    OPTConfig,
    T5Config,
    WhisperConfig,
    WhisperForConditionalGeneration,
    dynamic_module_utils,
)
from transformers.generation.utils import GENERATION_MODES_MAPPING
from transformers.models.musicgen.configuration_musicgen import MusicgenDecoderConfig

import nanwatch
from nanwatch.engines.huggingface.rows import KNOWN
from tests.engines.huggingface.notation import Cell, Planted
from tests.engines.huggingface.tiny import BOS, EOS, PAD, POISON, V, prompts, tiny_llama
from tests.engines.written import Written

ABC = ["a", "b", "c"]
BATCH = prompts([7, 8, 9, 10], [7, 8], [11, 12, 13])
BEAMS = {"do_sample": False, "num_beams": 2, "max_new_tokens": 4}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama()


def answers(model: Any, planted: Planted, **how: Any) -> list[list[int]]:
    with planted.in_head_of(model):
        tokens: Tensor = model.generate(**BATCH, **how)
    return tokens[:, 4:].tolist()


def at(forward: int, row: int) -> Cell:
    return Cell(forward, row, -1, "", "")


def test_every_mode_that_transformers_runs_itself_is_known() -> None:
    # The others (contrastive, DoLa, group and constrained beams) are names of repositories, whose code
    # generate() fetches and runs where it is trusted: a loop of somebody else's.
    own = {str(mode.value) for mode, loop in GENERATION_MODES_MAPPING.items() if "/" not in loop}
    assert own == KNOWN


FETCHED = """
from transformers import GenerationMixin

def _search(model, input_ids, **kwargs):
    for _ in range(2):
        logits = model(input_ids=input_ids).logits
    return input_ids

def generate(model, *args, **kwargs):
    return GenerationMixin.generate(model, *args, custom_generate=_search, **kwargs)
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One like those that contrastive search and group beams were moved to."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "repository" / "custom_generate"
    folder.mkdir(parents=True)
    (folder / "generate.py").write_text(FETCHED)
    return folder.parent


@pytest.mark.parametrize(("prompts", "expected"), [(1, ({"a": 2}, 0)), (3, ({}, 1))])
def test_a_loop_that_transformers_fetches_is_nobodys_unless_there_is_one_prompt(
    prompts: int, expected: tuple[dict[str, int], int], model: Any, written: Written, repository: Path
) -> None:
    batch = {name: values[:prompts] for name, values in BATCH.items()}
    how = {"custom_generate": str(repository), "trust_remote_code": True, "max_new_tokens": 2}
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(ABC[:prompts]), Planted((), at(2, 0)).in_head_of(model):
            model.generate(**batch, **how)
        totals, found = written.report(handle.probe)
    told = {name: r.first_step for name, r in found.items()}, totals.unattributed_nan_rows
    assert (told, totals.dropped_steps) == (expected, {})


def test_a_nan_in_a_search_that_is_over_still_changes_its_answer(model: Any) -> None:
    ends = frozenset({(2, 2), (2, 3)})
    clean = answers(model, Planted((), ends=ends), **BEAMS, early_stopping=True)
    spoilt = answers(model, Planted((), at(4, 2), ends), **BEAMS, early_stopping=True)
    assert [row == other for row, other in zip(clean, spoilt, strict=True)] == [True, False, True]


def test_a_beam_that_is_dropped_for_its_nan_corrupts_its_request_and_changes_no_answer(
    model: Any, written: Written
) -> None:
    class Drops(LogitsProcessor):
        def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
            return torch.where(scores.isnan(), -1e9, scores)

    how = {**BEAMS, "logits_processor": LogitsProcessorList([Drops()])}
    clean = answers(model, Planted(()), **how)
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(ABC):
            assert answers(model, Planted((), at(3, 5)), **how) == clean
        assert {name: r.first_step for name, r in written.corrupted(handle.probe).items()} == {"c": 3}


def test_a_nan_that_a_processor_makes_is_not_in_the_logits(model: Any, written: Written) -> None:
    class Spoils(LogitsProcessor):
        def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
            return torch.full_like(scores, float("nan"))

    with nanwatch.watch_generate(model) as handle, nanwatch.request_ids(ABC):
        answers(
            model,
            Planted(()),
            logits_processor=LogitsProcessorList([Spoils()]),
            do_sample=False,
            max_new_tokens=2,
        )
        assert written.totals(handle.probe).nan_rows == 0


def test_a_call_that_serves_an_outer_calls_requests_does_not_end_them(model: Any, written: Written) -> None:
    class AsksAgain(LogitsProcessor):
        """At the second step it lets the model answer the same three prompts, and throws that away."""

        steps = 0

        def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
            self.steps += 1
            if self.steps == 2:
                model.generate(torch.tensor([[7, 8], [7, POISON], [7, 8]]), do_sample=False, max_new_tokens=1)
            return scores

    how = {"logits_processor": LogitsProcessorList([AsksAgain()]), "do_sample": False, "max_new_tokens": 4}
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(ABC):
            answers(model, Planted((), at(4, 1)), **how)  # forwards 1, 2, 3 (the inner call's), 4, 5
        totals, found = written.report(handle.probe)
    assert (totals.requests, totals.corrupted_requests) == (3, 1)
    assert (found["b"].n, found["b"].first_step, found["b"].rows, found["b"].finished) == (0, 3, 2, True)


def test_a_generate_that_is_called_past_the_watch_is_a_dropped_step(
    model: Any, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    with nanwatch.watch_generate(model) as handle:
        GenerationMixin.generate(model, **BATCH, do_sample=False, max_new_tokens=2)
        assert written.totals(handle.probe).dropped_steps == {"error": 1}
    assert "called past the watch" in caplog.text


def tiny_musicgen() -> Any:
    """A model that sings: a sample for each of 4 codebooks, and guidance has each of them twice."""
    torch.manual_seed(0)
    text: Any = T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=V)
    sound: Any = EncodecConfig(
        num_filters=2,
        hidden_size=8,
        codebook_size=V,
        codebook_dim=8,
        upsampling_ratios=[2, 2],
        num_lstm_layers=1,
        target_bandwidths=[240.0],
    )
    # Its embeddings have a place more than its vocabulary.
    song: Any = MusicgenDecoderConfig(
        vocab_size=V,
        hidden_size=32,
        ffn_dim=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_codebooks=4,
        pad_token_id=V,
        bos_token_id=V,
    )
    parts = {"text_encoder": text.to_dict(), "audio_encoder": sound.to_dict(), "decoder": song.to_dict()}
    model: Any = MusicgenForConditionalGeneration(MusicgenConfig(**parts))
    return model.eval()


@pytest.mark.parametrize(("ids", "corrupted", "unattributed"), [(["a"], {"a": 1}, 0), (["a", "b"], {}, 1)])
def test_whatever_the_rows_of_one_prompt_are_they_are_its_own(
    ids: list[str], corrupted: dict[str, int], unattributed: int, written: Written
) -> None:
    model, texts = tiny_musicgen(), torch.tensor([[5, 6, 7]] * len(ids))

    def spoil(_module: Any, _args: Any, output: Any) -> None:
        assert output.logits.shape[0] == 8 * len(ids)
        forwards.append(output)
        if len(forwards) == 2:
            output.logits[6, -1, 0] = float("nan")

    forwards: list[Any] = []
    model.register_forward_hook(spoil)
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(ids):
            model.generate(input_ids=texts, do_sample=False, guidance_scale=3.0, max_new_tokens=6)
        totals, found = written.report(handle.probe)
    assert {name: r.rows for name, r in found.items()} == corrupted
    assert totals.rows == 8 * len(ids) * len(forwards)
    assert (totals.unattributed_nan_rows, totals.dropped_steps) == (unattributed, {})


def tiny_whisper() -> Any:
    """A model that listens, to 20 frames at a time."""
    torch.manual_seed(0)
    layers = {
        f"{half}_{what}": 1 for half in ("encoder", "decoder") for what in ("layers", "attention_heads")
    }
    kind: Any = WhisperConfig
    config = kind(
        **layers,
        vocab_size=V,
        num_mel_bins=8,
        d_model=16,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=10,
        max_target_positions=40,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=POISON,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    model: Any = WhisperForConditionalGeneration(config)
    model.generation_config.no_timestamps_token_id = 50
    return model.eval()


# Stretches of 20 frames, 4 forwards for each: audio of 30 frames has ended when the third is read, and the
# other's row is row 0 of 1, which nobody could tell from the second's.
@pytest.mark.parametrize(
    ("frames", "cell", "corrupted", "unattributed"),
    [
        ([60], at(1, 0), {"a"}, 0),
        ([60], at(5, 0), {"a"}, 0),
        ([60, 30], at(1, 1), {"b"}, 0),
        ([60, 30], at(9, 0), set(), 1),
    ],
)
def test_long_audio_is_one_request_over_all_its_stretches(
    frames: list[int], cell: Cell, corrupted: set[str], unattributed: int, written: Written
) -> None:
    model = tiny_whisper()
    mask = torch.tensor([[1] * length + [0] * (60 - length) for length in frames])
    planted = Planted((), cell)
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(ABC[: len(frames)]), planted.in_head_of(model):
            model.generate(
                torch.rand(len(frames), 8, 60),
                attention_mask=mask,
                return_timestamps=True,
                do_sample=False,
                max_new_tokens=4,
            )
        totals, found = written.report(handle.probe)
    assert planted.shapes == [[len(frames), 1]] * 8 + [[1, 1]] * 4
    assert set(found) == corrupted
    assert (totals.requests, totals.unattributed_nan_rows) == (len(frames), unattributed)


def tiny_blip2() -> Any:
    """A model that sees: its generate() makes embeddings, and lets its language model generate."""
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    words: Any = OPTConfig(
        vocab_size=V,
        hidden_size=32,
        ffn_dim=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=2,
    )
    config: Any = Blip2Config(
        vision_config={**small, "image_size": 8, "patch_size": 4},
        qformer_config={**small, "vocab_size": V},
        text_config=words.to_dict(),
        num_query_tokens=2,
        image_token_index=V - 1,
    )
    model: Any = Blip2ForConditionalGeneration(config)
    return model.eval()


def test_a_model_that_lets_a_part_of_it_generate_is_followed_there(written: Written) -> None:
    model, pictures = tiny_blip2(), torch.rand(2, 3, 8, 8)
    with nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(["a", "b"]), Planted((), at(2, 1)).in_head_of(model.language_model):
            model.generate(pictures, do_sample=False, max_new_tokens=3)
        totals, found = written.report(handle.probe)
    assert {name: (r.phase, r.first_step, r.rows) for name, r in found.items()} == {"b": ("decode", 2, 1)}
    assert (totals.requests, totals.rows, totals.dropped_steps) == (2, 6, {})
    assert not {"_prefill", "_get_stopping_criteria"} & set(vars(model.language_model))
