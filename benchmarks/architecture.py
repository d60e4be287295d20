"""One architecture of Transformers, tiny, on the CPU: a planted NaN, and the request that it is charged to.

Two prompts of four tokens, ids a and b, four new tokens each. The NaN is written into one value of the last
position of row 1 of the logits, by a hook on the model that runs before nanwatch's own, at forward 2:
    it has to come out as    b, phase decode, first step 2, 1 row, 1 value
    and a clean run as       no NaN, 2 requests, 8 rows, the same tokens as without nanwatch
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import nanwatch
from benchmarks.scratch import scratch_journal
from benchmarks.tiny_configs import config_for, tiny_config
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.totals import Totals

PROMPTS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
TOKENS = 4
ROWS = len(PROMPTS) * TOKENS

PASSES, NOT_BUILT, NO_GENERATE, FAILS = "passes", "cannot be built", "cannot generate by itself", "FAILS"

# In words, what an error alone does not tell.
EXPLAINED = {
    "blt": "its config has no number of layers, so generate() cannot make it a cache",
    "gemma3n": "its eyes are timm's, which is not installed; gemma3n_text is the rest",
    "gemma4_assistant": "drafts for a Gemma 4, from that model's states",
    "gemma4_unified_assistant": "drafts for a Gemma 4, from that model's states",
    "musicgen": "a prompt is a row for each codebook of sound; the whole model is in test_loops.py",
    "musicgen_melody": "as musicgen",
}


class Verdict(NamedTuple):
    """What came of one architecture."""

    model_type: str
    kind: str  # the class of the model
    result: str
    why: str = ""
    weights: int = 0


def try_architecture(model_type: str) -> Verdict:
    """Build it, let it generate without nanwatch and with it, clean and with a NaN."""
    kind = ""
    try:
        kind = class_of(model_type)
        model = build(model_type)
    except Exception as error:  # noqa: BLE001  whatever keeps it from being built is the answer
        return Verdict(model_type, kind, NOT_BUILT, in_words(model_type, error))
    weights = sum(parameter.numel() for parameter in model.parameters())
    try:
        expected = generate(model)
    except Exception as error:  # noqa: BLE001  likewise
        return Verdict(model_type, kind, NO_GENERATE, in_words(model_type, error), weights)
    try:
        check(model, expected)
    except Exception as error:  # noqa: BLE001  likewise
        return Verdict(model_type, kind, FAILS, in_short(error), weights)
    return Verdict(model_type, kind, PASSES, "", weights)


def class_of(model_type: str) -> str:
    """Return the class that AutoModelForCausalLM takes for it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return str(classes if isinstance(classes, str) else classes[0])


def build(model_type: str) -> Any:
    """Return it with random weights, none of them NaN."""
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, class_of(model_type))
    model = kind._from_config(config_for(kind, tiny_config(model_type)))  # noqa: SLF001  as AutoModel does
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.nan_to_num_(0.0, 0.0, 0.0)  # some leave weights as memory was
    config = model.generation_config
    config.eos_token_id, config.pad_token_id = None, 0
    return model.eval()


def generate(model: Any) -> Tensor:
    """Return the tokens of both prompts."""
    tokens: Tensor = model.generate(PROMPTS, do_sample=False, max_new_tokens=TOKENS)
    return tokens


def check(model: Any, expected: Tensor) -> None:
    """Raise AssertionError where nanwatch does not say what it should.

    `expected` are the tokens that the model makes without it.
    """
    with scratch_journal() as folder, nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(["clean-a", "clean-b"]):
            same = torch.equal(generate(model), expected)
        told = _told(folder, handle.probe)
    _require(same, "other tokens than without nanwatch")
    _require(not told[1], f"a clean run has NaN in {told[1]}")
    _require((told[0].requests, told[0].rows) == (2, ROWS), f"2 requests and {ROWS} rows, found {told[0]}")
    with scratch_journal() as folder, _planting(model), nanwatch.watch_generate(model) as handle:
        with nanwatch.request_ids(["a", "b"]):
            generate(model)
        told = _told(folder, handle.probe)
    _require(told[1] == {"b": ("decode", 2, 1, 1)}, f"b, decode, step 2, 1 row, 1 value; found {told[1]}")
    _require(not told[0].dropped_steps, f"dropped steps {told[0].dropped_steps}")


class _planting:  # noqa: N801  reads as a verb at the `with`
    """Writes one NaN into row 1 at the second forward."""

    def __init__(self, model: nn.Module) -> None:
        self._forwards = 0
        self._hook = model.register_forward_hook(self._write)

    def _write(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._forwards += 1
        if self._forwards == 2:  # noqa: PLR2004  see the module docstring
            output.logits[1, -1, ..., 0] = float("nan")

    def __enter__(self) -> None:
        """Nothing more: the hook is there."""

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


Told = tuple[Totals, dict[str, tuple[str, int, int, int]]]


def _told(folder: Path, probe: nanwatch.NanProbe) -> Told:
    """Return what the journal says: totals, and (phase, first step, rows, values) by request id."""
    _require(probe.flush(), "the journal was not written in time")
    reader = JournalReader(folder)
    reader.poll()
    reader.close()
    (source,) = reader.sources
    corrupted = {
        request.request_id: (request.phase, request.first_step, request.rows, request.values)
        for request in source.corrupted.values()
    }
    return source.totals, corrupted


def _require(holds: bool, what: str) -> None:  # noqa: FBT001  reads as "require that"
    if not holds:
        raise AssertionError(what)


def in_words(model_type: str, error: BaseException) -> str:
    """Return why it was not tried: the error, and what that means."""
    told = EXPLAINED.get(model_type)
    return f"{in_short(error)} ({told})" if told else in_short(error)


def in_short(error: BaseException) -> str:
    """Return the error in one line of a table."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text.replace("|", "/").replace(tempfile.gettempdir(), "...")[:160]
