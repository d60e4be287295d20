"""Where NANWATCH_ON_NAN=abort was not verified: there it refuses to start. docs/containment.md says why."""

from collections.abc import Iterator
from typing import Any

import torch
import transformers

from nanwatch.settings import SettingsError
from nanwatch.stop import abort_refused

VERSIONS = ("5.24",)
DEVICES = ("cpu",)
ATTENTION = ("sdpa", "paged|eager")
FULL_ATTENTION = "full_attention"
NARROWEST_BITS = 16

OTHERWISE = "observe or raise"


def refuse_unless_verified(model: Any, manager: Any) -> None:
    """Look at a manager that was just made.

    Raises:
        SettingsError: one line with the first reason, and what to use instead.
    """
    for why, instead in _reasons(model, manager):
        raise abort_refused(why, f"{instead}, or {OTHERWISE}" if instead else OTHERWISE)


def refused_for_generate() -> SettingsError:
    """Return why generate() is refused."""
    return abort_refused(
        "generate() answers all requests of a call together and cannot end one of them",
        f"continuous batching, or {OTHERWISE}",
    )


def _reasons(model: Any, manager: Any) -> Iterator[tuple[str, str]]:
    settings = manager.continuous_batching_config
    version = transformers.__version__
    if not version.startswith(tuple(f"{verified}." for verified in VERSIONS)):
        yield f"Transformers {version} was not verified", f"Transformers {', '.join(VERSIONS)}"
    if manager.is_running():
        yield "continuous batching was started before it was watched", "watch_generate before it is started"
    if manager.distributed_helper.tp_size > 1:
        yield "tensor parallelism was not verified", ""
    if model.device.type not in DEVICES:
        yield f"continuous batching on {model.device.type} was not verified", ""
    if model.config._attn_implementation not in ATTENTION:  # noqa: SLF001  there is no public name
        found = model.config._attn_implementation  # noqa: SLF001
        yield f"attention by {found} was not verified", "sdpa attention with auto_switch_to_flash=False"
    if _kinds_of_layers(model) != {FULL_ATTENTION}:
        yield "layers with other than full attention, as sliding windows, were not verified", ""
    if torch.finfo(model.dtype).bits < NARROWEST_BITS:
        yield f"a KV cache of {model.dtype} was not verified", ""
    if settings.cpu_offload_space != 0:
        yield "moving requests to the host's memory was not verified", "cpu_offload_space=0"
    if settings.varlen_compile_config is not None or settings.decode_compile_config is not None:
        yield "compiled continuous batching was not verified", "it without compilation"


def _kinds_of_layers(model: Any) -> set[str]:
    """Return the kinds of attention, as the engine tells them apart."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {FULL_ATTENTION if getattr(config, "sliding_window", None) is None else "sliding_attention"}
    return set(kinds)
