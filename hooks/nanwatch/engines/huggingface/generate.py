"""Hugging Face Transformers' `generate()`: which of a batch's requests came out as NaN.

    handle = nanwatch.watch_generate(model)
    with nanwatch.request_ids(["cmpl-1", "cmpl-2"]):
        model.generate(**tokenizer(prompts, return_tensors="pt", padding=True))

Each prompt of a call is a request; with num_return_sequences=2 and sampling each returned sequence is
one: cmpl-1-0, cmpl-1-1. They are finished when the call ends, also where it raises. rows.py says what a
row is in each mode, call.py goes through an example, seams.py says where it looks, and why there.

What is open lives in a ContextVar, so calls in several threads, and a call inside a call, do not mix.
A forward outside of generate() is not counted here: that is what `watch` is for.
"""

import inspect
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Optional

from torch import Tensor, nn
from transformers import GenerationConfig, StoppingCriteriaList

from nanwatch.engines.guard import DROP_REASON, Guard
from nanwatch.engines.handle import Watch
from nanwatch.engines.module import device_of
from nanwatch.probe import NanProbe
from nanwatch.request_scope import current_scope

from .automatic import give_way
from .call import GenerateCall
from .continuous import ContinuousWatcher
from .criteria import ReportingCriteria
from .drafts import report_drafts
from .prompt_chunks import chunks_of
from .replaced_method import Method, ReplacedMethod
from .rows import RowPlan
from .seams import follow_loops, refuse_unless_watchable

RUNTIME = "transformers"

# generate() takes its batch from the first of these that it is given.
_PROMPTS = ("inputs", "input_ids", "inputs_embeds", "input_features", "input_values", "pixel_values")


def watch_generate(
    model: nn.Module, *, probe: NanProbe | None = None, model_name: str | None = None
) -> Watch:
    """Count the NaNs in the logits of `model.generate()` from now on, until the handle is closed.

    The model's continuous batching (`generate_batch`, `init_continuous_batching`) is watched too.

    Args:
        model: a Transformers model, or one that torch.compile was given.
        probe: the probe to use; without one the handle makes its own, and closes it.
        model_name: label of the handle's own probe, by default where the model came from, or its class.

    Raises:
        TypeError: the model has no generate() of Transformers.
        ValueError: it is being watched already.
    """
    target: nn.Module = getattr(model, "_orig_mod", model)
    give_way(target)
    refuse_unless_watchable(target)
    name = model_name or getattr(target, "name_or_path", "") or type(target).__name__
    used = probe or NanProbe(name, runtime=RUNTIME, device=device_of(target))
    handle = Watch(used, owns_probe=probe is None)
    _GenerateWatcher(target, used).attach(handle)
    ContinuousWatcher(used).attach(target, handle)
    return handle


def probe_of_running_call() -> NanProbe | None:
    """Return the probe of the generate() that runs in this thread, None where none is watched."""
    running = _running.get()
    return running.watcher.probe if running is not None else None


def is_in_generate_of(model: nn.Module) -> bool:
    """Whether a watched generate() of this model runs in this thread."""
    running = _running.get()
    while running is not None and running.watcher.model is not model:
        running = running.outer
    return running is not None


@dataclass(slots=True)
class _Open:
    """A call of generate() that is running, and the one that it runs in."""

    watcher: "_GenerateWatcher"
    call: GenerateCall
    custom: bool  # the loop is the caller's own
    assistant: Any
    module: nn.Module  # whose forwards are this call's: the model's, or those of a part that generates
    outer: Optional["_Open"]
    holds_another: bool = False

    def calls_around(self) -> Iterator[GenerateCall]:
        """Yield the calls that this one runs in, the nearest first."""
        around = self.outer
        while around is not None:
            yield around.call
            around = around.outer


_running: ContextVar[_Open | None] = ContextVar("nanwatch_generate", default=None)


class _GenerateWatcher:
    """Follows the calls of one model's generate(); see seams.Loops for what it is told."""

    def __init__(self, model: Any, probe: NanProbe) -> None:
        self.model: nn.Module = model
        self.probe = probe
        self._guard = Guard("nanwatch.watch_generate", probe)
        self._parameters = tuple(inspect.signature(model.generate).parameters)

    def attach(self, handle: Watch) -> None:
        """Follow the model until the handle is closed."""
        for undo in follow_loops(self.model, self, self._guard):
            handle.on_close(undo)
        handle.on_close(ReplacedMethod(self.model, "generate", self._around_generate).put_back)

    def _around_generate(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        running = self._guard.run(self._opened, {**dict(zip(self._parameters, args, strict=False)), **kwargs})
        token = _running.set(running)
        try:
            result = original(*args, **kwargs)
            self._guard.run(self._say_if_blind, running)
            return result
        finally:
            _running.reset(token)
            if running is not None:
                self._guard.run(running.call.finish, running.calls_around())

    def begin(
        self, module: nn.Module, criteria: StoppingCriteriaList, config: GenerationConfig
    ) -> StoppingCriteriaList:
        """Note that a loop of `module` begins; return the criteria that it is to ask."""
        running = self._innermost()
        if running is None:
            self._drop("past", "generate() was called past the watch, through the class: not counted")
            return criteria
        call, running.module = running.call, module
        call.begin(_plan_of(config, criteria, running))
        return ReportingCriteria(criteria, lambda is_done: self._guard.run(call.tokens_chosen, is_done))

    def draft_with(self, generator: Any) -> None:
        """Note what drafts for the loop that runs."""
        running = self._innermost()
        if running is not None:
            report_drafts(generator, running.call.drafted)

    def prefill(self, config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
        """Note that the loop that runs reads its prompts next."""
        running = self._innermost()
        if running is not None:
            running.call.prefill_in(chunks_of(config.prefill_chunk_size, model_kwargs))

    def look(self, module: nn.Module, output: Any) -> None:
        """Look at what a forward of `module` gave."""
        running = self._innermost()
        logits = getattr(output, "logits", None)
        if running is not None and running.module is module and isinstance(logits, Tensor):
            running.call.observe(logits)

    def _opened(self, arguments: dict[str, Any]) -> _Open:
        scope = current_scope()
        outer = _running.get()
        if outer is not None:
            outer.holds_another = True
        return _Open(
            watcher=self,
            call=GenerateCall(self.probe, self._guard, scope.ids if scope else None, _prompts_in(arguments)),
            custom=arguments.get("custom_generate") is not None,
            assistant=arguments.get("assistant_model"),
            module=self.model,
            outer=outer,
        )

    def _innermost(self) -> _Open | None:
        """Return this model's innermost call; another watched model's may run inside it."""
        running = _running.get()
        while running is not None and running.watcher is not self:
            running = running.outer
        return running

    def _say_if_blind(self, running: _Open | None) -> None:
        if running is not None and running.call.forwards == 0 and not running.holds_another:
            self._drop("blind", "generate() made no forward of this model in its thread: nothing was counted")

    def _drop(self, kind: str, why: str) -> None:
        self._guard.say(kind, why)
        self.probe.drop(DROP_REASON)


def _plan_of(config: GenerationConfig, criteria: StoppingCriteriaList, running: _Open) -> RowPlan:
    mode = config.get_generation_mode(running.assistant)
    return RowPlan(
        mode="custom_generate" if running.custom else str(mode.value),
        returns=config.num_return_sequences or 1,
        beams=config.num_beams or 1,
        is_draft=bool(config.is_assistant),
        pads_ended=any(hasattr(criterion, "eos_token_id") for criterion in criteria),
    )


def _prompts_in(arguments: dict[str, Any]) -> int | None:
    batches = (arguments.get(name) for name in _PROMPTS)
    return next((batch.shape[0] for batch in batches if isinstance(batch, Tensor) and batch.dim()), None)
