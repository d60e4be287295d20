"""Where `abort` was seen to work, and the one line with which it refuses anywhere else.

Looked at twice: the configuration as soon as there is one, before any weight is loaded; the kind of
KV cache when the scheduler knows it. A table, so that what is refused can be read: each row is a reason
and how to tell. A field that a version lacks counts as what it stands for not being there.
"""

from collections.abc import Callable, Iterator
from typing import Any

from nanwatch.settings import SettingsError
from nanwatch.stop import abort_refused

VERSIONS = ("0.32.0",)
FULL_ATTENTION = "FullAttentionSpec"
_EXECUTORS = (None, "uni", "mp")
_DRAFTS = ("ngram",)

Test = Callable[[Any], Any]  # of a VllmConfig: true where it is refused

MODES: tuple[tuple[str, Test], ...] = (
    # Nobody has run it there; a KV cache may lie in another way, and freed blocks be used at another time.
    ("a GPU, or any other device than a CPU", lambda c: c.device_config.device_type != "cpu"),
    ("pipeline parallelism", lambda c: c.parallel_config.pipeline_parallel_size > 1),
    (
        "batch-sharded sampling",
        lambda c: getattr(c.parallel_config, "enable_batch_sharded_sampling", False),
    ),
    ("data parallelism", lambda c: c.parallel_config.data_parallel_size > 1),
    (
        "prefill or decode context parallelism",
        lambda c: (
            max(
                getattr(c.parallel_config, "prefill_context_parallel_size", 1),
                getattr(c.parallel_config, "decode_context_parallel_size", 1),
            )
            > 1
        ),
    ),
    ("overlapped micro-batches (DBO)", lambda c: getattr(c.parallel_config, "use_ubatching", False)),
    (
        "an executor other than uni and mp",
        lambda c: c.parallel_config.distributed_executor_backend not in _EXECUTORS,
    ),
    ("a scheduler of your own", lambda c: c.scheduler_config.scheduler_cls is not None),
    ("a KV connector or disaggregated prefill", lambda c: c.kv_transfer_config is not None),
    ("an encoder-cache connector", lambda c: getattr(c, "ec_transfer_config", None) is not None),
    ("KV cache events", lambda c: getattr(c.kv_events_config, "enable_kv_cache_events", False)),
    ("pooling models", lambda c: c.model_config.runner_type == "pooling"),
    ("multimodal models", lambda c: c.model_config.is_multimodal_model),
    ("encoder-decoder models", lambda c: c.model_config.is_encoder_decoder),
    ("diffusion models", lambda c: getattr(c.model_config, "is_diffusion", False)),
    (
        "speculative decoding other than ngram",
        lambda c: c.speculative_config is not None and c.speculative_config.method not in _DRAFTS,
    ),
    (
        "adaptive verification of drafts",
        lambda c: getattr(c.speculative_config, "enable_adaptive_verification", False),
    ),
    ("KV sharing with fast prefill", lambda c: getattr(c.cache_config, "kv_sharing_fast_prefill", False)),
)


def refuse_version(version: str) -> None:
    """Raise unless `abort` was run on this version of vLLM: "0.32.0+cpu" is 0.32.0.

    Raises:
        SettingsError: one line that names both.
    """
    if version.partition("+")[0] not in VERSIONS:
        raise _not_verified(f"vLLM {version}; it was on {', '.join(VERSIONS)}")


def refuse_config(vllm_config: Any) -> None:
    """Raise where a mode is switched on in which `abort` was not run.

    Raises:
        SettingsError: one line that names every such mode.
    """
    found = [mode for mode, is_on in MODES if is_on(vllm_config)]
    if found:
        raise _not_verified(" and ".join(found))


def refuse_cache(kv_cache_config: Any) -> None:
    """Raise unless the KV cache is one group of plain full attention.

    Raises:
        SettingsError: one line that names what it is.
    """
    kinds = list(_kinds(kv_cache_config))
    if kinds != [FULL_ATTENTION]:
        raise _not_verified(f"a KV cache of {' and '.join(kinds) or 'no layers'}; it was on full attention")


def _kinds(kv_cache_config: Any) -> Iterator[str]:
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        name = type(spec).__name__
        windowed = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
        yield f"windowed {name}" if windowed and name == FULL_ATTENTION else name


def _not_verified(what: str) -> SettingsError:
    return abort_refused(f"it was not verified with {what}")
