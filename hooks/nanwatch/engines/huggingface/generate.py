"""Hugging Face Transformers' `generate()`: which of a batch's requests came out as NaN.

    handle = nanwatch.watch_generate(model)
    with nanwatch.request_ids(["cmpl-1", "cmpl-2"]):
        model.generate(**tokenizer(prompts, return_tensors="pt", padding=True))

Each prompt of a call is a request; with num_return_sequences=2 and sampling each returned sequence is
one: cmpl-1-0, cmpl-1-1. They are finished when the call ends, also where it raises. rows.py says what a
row is in each mode, call.py goes through an example.

Where it looks, and why there
    a forward hook on the model         sees the logits as the model made them, in their own type and
                                        on their own device, in eager, compiled, chunked and streamed
                                        runs. A LogitsProcessor would see a copy, behind those that
                                        models put first, and no chunk of a prompt but the last.
    model._get_stopping_criteria        says what generate() has settled on (mode, beams, returned
                                        sequences), and its criteria are the only place that says which
                                        sequences ended. The loops themselves are looked up on the class
                                        and keep that in local variables.
    model.generate                      begins and ends the requests.
The last two are replaced on this one object, and put back by close(). What is open lives in a
ContextVar, so calls in several threads, and a call inside a call, do not mix. A forward outside of
generate() is not counted here: that is what `watch` is for.
"""

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Optional

from torch import Tensor, nn
from transformers import GenerationConfig, StoppingCriteriaList

from nanwatch.engines.forward_hook import ForwardHook
from nanwatch.engines.guard import DROP_REASON, Guard
from nanwatch.engines.handle import Watch
from nanwatch.engines.module import device_of
from nanwatch.probe import NanProbe
from nanwatch.request_scope import current_scope

from .call import GenerateCall
from .continuous import ContinuousWatcher, refused_for_generate
from .criteria import ReportingCriteria
from .replaced_method import Method, ReplacedMethod
from .rows import RowPlan

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
        SettingsError: fail-fast or an abort was asked for in words that are not understood. An abort is
            refused where continuous batching is begun in a mode that was not verified, and by generate().
    """
    target: nn.Module = getattr(model, "_orig_mod", model)
    _refuse_unless_watchable(target)
    name = model_name or getattr(target, "name_or_path", "") or type(target).__name__
    used = probe or NanProbe(name, runtime=RUNTIME, device=device_of(target), can_abort=True)
    handle = Watch(used, owns_probe=probe is None)
    _GenerateWatcher(used).attach(target, handle)
    ContinuousWatcher(used).attach(target, handle)
    return handle


@dataclass(slots=True)
class _Open:
    """A call of generate() that is running, and the one that it runs in."""

    watcher: "_GenerateWatcher"
    call: GenerateCall
    custom: bool  # the loop is the caller's own
    assistant: Any
    outer: Optional["_Open"]
    holds_another: bool = False


_running: ContextVar[_Open | None] = ContextVar("nanwatch_generate", default=None)


class _GenerateWatcher:
    """Follows the calls of one model's generate()."""

    def __init__(self, probe: NanProbe) -> None:
        self._probe = probe
        self._guard = Guard("nanwatch.watch_generate", probe)
        self._parameters: tuple[str, ...] = ()

    def attach(self, model: Any, handle: Watch) -> None:
        """Look at everything that the module docstring names, until the handle is closed."""
        self._parameters = tuple(inspect.signature(model.generate).parameters)
        hook = ForwardHook(self._look, self._guard)
        handle.on_close(model.register_forward_hook(hook, with_kwargs=True).remove)
        handle.on_close(ReplacedMethod(model, "_get_stopping_criteria", self._around_criteria).put_back)
        handle.on_close(ReplacedMethod(model, "generate", self._around_generate).put_back)

    def _around_generate(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._probe.aborts:
            raise refused_for_generate()
        running = self._guard.run(self._opened, {**dict(zip(self._parameters, args, strict=False)), **kwargs})
        token = _running.set(running)
        try:
            result = original(*args, **kwargs)
            self._guard.run(self._say_if_blind, running)
            return result
        finally:
            _running.reset(token)
            if running is not None:
                self._guard.run(running.call.finish)

    def _around_criteria(self, original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        criteria = original(*args, **kwargs)
        config = kwargs["generation_config"] if "generation_config" in kwargs else next(iter(args), None)
        reporting = self._guard.run(self._reporting, criteria, config)
        return criteria if reporting is None else reporting

    def _reporting(self, criteria: StoppingCriteriaList, config: Any) -> StoppingCriteriaList:
        running = self._innermost()
        if running is None:
            return criteria
        call = running.call
        call.begin(_plan_of(config, running))
        return ReportingCriteria(criteria, lambda is_done: self._guard.run(call.tokens_chosen, is_done))

    def _look(self, output: Any, arguments: Mapping[str, Any]) -> None:
        running = self._innermost()
        logits = getattr(output, "logits", None)
        if running is not None and isinstance(logits, Tensor):
            running.call.observe(logits, arguments)

    def _opened(self, arguments: Mapping[str, Any]) -> _Open:
        scope = current_scope()
        outer = _running.get()
        if outer is not None:
            outer.holds_another = True
        return _Open(
            watcher=self,
            call=GenerateCall(self._probe, self._guard, scope.ids if scope else None, _prompts_in(arguments)),
            custom=arguments.get("custom_generate") is not None,
            assistant=arguments.get("assistant_model"),
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
            self._guard.say(
                "blind", "generate() made no forward of this model in its thread: nothing was counted"
            )
            self._probe.drop(DROP_REASON)


def _plan_of(config: GenerationConfig, running: _Open) -> RowPlan:
    mode = config.get_generation_mode(running.assistant)
    return RowPlan(
        mode="custom_generate" if running.custom else str(mode.value),
        returns=config.num_return_sequences or 1,
        beams=config.num_beams or 1,
        is_draft=bool(config.is_assistant),
        in_chunks=config.prefill_chunk_size is not None,
    )


def _prompts_in(arguments: Mapping[str, Any]) -> int | None:
    batches = (arguments.get(name) for name in _PROMPTS)
    return next((batch.shape[0] for batch in batches if isinstance(batch, Tensor) and batch.dim()), None)


def _refuse_unless_watchable(model: nn.Module) -> None:
    kind = type(model).__name__
    for method in ("generate", "_get_stopping_criteria"):
        if not callable(getattr(model, method, None)):
            raise TypeError(f"watch_generate takes a model of Transformers: {kind} has no {method}()")
    is_watched = isinstance(vars(model).get("generate"), ReplacedMethod)
    if is_watched:
        raise ValueError(f"this {kind} is watched already: close the first handle before")
