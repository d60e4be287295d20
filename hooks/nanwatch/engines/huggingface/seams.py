"""Where watch_generate looks in a model of Transformers, and why there.

    a forward hook              sees the logits as the model made them, in their own type and on their own
                                device, in eager, compiled, chunked and streamed runs. A LogitsProcessor
                                would see a copy, behind those that models put first, and no chunk of a
                                prompt but the last.
    _get_stopping_criteria      says what generate() has settled on (mode, beams, returned sequences), and
                                its criteria are the only place that says which sequences ended. The loops
                                themselves are looked up on the class and keep that in local variables.
    _get_candidate_generator    says what drafts, and it says how many tokens are to be verified.
    _prefill                    says how a prompt is read: what of each chunk is padding.
The methods are replaced on the one object, and put back. Some models hand their prompts to a part of
theirs that generates (BLIP-2 to its language model): so every part that can is followed, and a call's
forwards are those of the part whose criteria were asked for last.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import nn
from transformers import GenerationConfig, StoppingCriteriaList

from nanwatch.engines.forward_hook import ForwardHook
from nanwatch.engines.guard import Guard

from .replaced_method import Method, ReplacedMethod

_ARGUMENTS_OF_PREFILL = ("input_ids", "generation_config", "model_kwargs")
_NEEDED = ("generate", "_get_stopping_criteria")


class Loops(Protocol):
    """Who is told of the decoding loops of a model and its parts."""

    def begin(
        self, module: nn.Module, criteria: StoppingCriteriaList, config: GenerationConfig
    ) -> StoppingCriteriaList:
        """Return the criteria that the loop is to ask."""
        ...

    def draft_with(self, generator: Any) -> None:
        """`generator` drafts for the loop."""
        ...

    def prefill(self, config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
        """The loop reads its prompts next."""
        ...

    def look(self, module: nn.Module, output: Any) -> None:
        """A forward gave `output`."""
        ...


def follow_loops(model: nn.Module, loops: Loops, guard: Guard) -> Iterator[Callable[[], object]]:
    """Tell `loops` of what each part of `model` that can generate does; yield how to stop that."""
    for module in model.modules():
        if _can_generate(module):
            yield from _follow(module, loops, guard)


def refuse_unless_watchable(model: nn.Module) -> None:
    """Raise where the model cannot be watched.

    Raises:
        TypeError: it has no generate() of Transformers.
        ValueError: it is being watched already.
    """
    kind = type(model).__name__
    for method in _NEEDED:
        if not callable(getattr(model, method, None)):
            raise TypeError(f"watch_generate takes a model of Transformers: {kind} has no {method}()")
    is_watched = isinstance(vars(model).get("generate"), ReplacedMethod)
    if is_watched:
        raise ValueError(f"this {kind} is watched already: close the first handle before")


def _can_generate(module: nn.Module) -> bool:
    return all(callable(getattr(module, method, None)) for method in _NEEDED)


def _follow(module: nn.Module, loops: Loops, guard: Guard) -> Iterator[Callable[[], object]]:
    def look(output: Any, _arguments: Any) -> None:
        loops.look(module, output)

    def criteria(original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = original(*args, **kwargs)
        config = kwargs["generation_config"] if "generation_config" in kwargs else next(iter(args), None)
        reporting = guard.run(loops.begin, module, found, config)  # type: ignore[arg-type]
        return found if reporting is None else reporting

    def candidates(original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator = original(*args, **kwargs)
        guard.run(loops.draft_with, generator)
        return generator

    def prefill(original: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        guard.run(_tell_of_prefill, loops, args, kwargs)
        return original(*args, **kwargs)

    yield module.register_forward_hook(ForwardHook(look, guard), with_kwargs=True).remove
    for name, around in (
        ("_get_stopping_criteria", criteria),
        ("_get_candidate_generator", candidates),
        ("_prefill", prefill),
    ):
        if callable(getattr(module, name, None)):
            yield ReplacedMethod(module, name, around).put_back


def _tell_of_prefill(loops: Loops, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = dict(zip(_ARGUMENTS_OF_PREFILL, args, strict=False)) | kwargs
    loops.prefill(given["generation_config"], given["model_kwargs"])
