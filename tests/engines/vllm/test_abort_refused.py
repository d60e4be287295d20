"""Where `abort` was not verified it refuses, in one line: what takes no vLLM to tell.

vLLM's own configurations are in test_real_abort_refused.py.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from nanwatch.engines.vllm.containment.verified import refuse_cache, refuse_config, refuse_version
from nanwatch.engines.vllm.registration import register
from nanwatch.settings import SettingsError


class FullAttentionSpec(SimpleNamespace):
    """Named like vLLM's; so are the others."""


class MLAAttentionSpec(FullAttentionSpec):
    pass


class MambaSpec(SimpleNamespace):
    pass


def configuration(device: str) -> Any:
    """Stand in for the VllmConfig of a machine with a GPU; all else as it is where abort was run."""
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, data_parallel_size=1, distributed_executor_backend="uni"
        ),
        scheduler_config=SimpleNamespace(scheduler_cls=None),
        model_config=SimpleNamespace(
            runner_type="generate", is_multimodal_model=False, is_encoder_decoder=False
        ),
        cache_config=SimpleNamespace(),
        kv_transfer_config=None,
        kv_events_config=None,
        speculative_config=None,
    )


def cache(*specs: Any) -> Any:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


FULL = FullAttentionSpec(sliding_window=None, attention_chunk_size=None)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.0+cu130"])
def test_the_version_that_was_run_is_taken_whatever_it_was_built_for(version: str) -> None:
    refuse_version(version)


@pytest.mark.parametrize("version", ["0.31.0", "0.32.1", "0.33.0", "0.3", "unknown"])
def test_any_other_version_is_refused_by_name(version: str) -> None:
    with pytest.raises(SettingsError) as refused:
        refuse_version(version)
    assert str(refused.value) == (
        f"NANWATCH_ON_NAN='abort' cannot be had here: it was not verified with vLLM {version}; "
        "it was on 0.32.0; use observe or raise"
    )


def test_a_device_on_which_nobody_has_run_it_is_refused() -> None:
    refuse_config(configuration("cpu"))
    with pytest.raises(SettingsError, match="not verified with a GPU, or any other device than a CPU; use"):
        refuse_config(configuration("cuda"))


def test_one_group_of_full_attention_is_taken() -> None:
    refuse_cache(cache(FULL))


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        ((FULL, FULL), "FullAttentionSpec and FullAttentionSpec"),
        ((FULL, MambaSpec()), "FullAttentionSpec and MambaSpec"),
        ((MLAAttentionSpec(),), "MLAAttentionSpec"),
        ((FullAttentionSpec(sliding_window=4096),), "windowed FullAttentionSpec"),
        ((FullAttentionSpec(attention_chunk_size=8192),), "windowed FullAttentionSpec"),
        ((), "no layers"),
    ],
)
def test_any_other_cache_is_refused_by_its_kind(specs: tuple[Any, ...], named: str) -> None:
    with pytest.raises(SettingsError, match=f"not verified with a KV cache of {named}; it was on full"):
        refuse_cache(cache(*specs))


def test_a_vllm_that_nobody_has_seen_refuses_instead_of_only_observing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here vllm cannot even be imported; with observe that is one warning."""
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    monkeypatch.setenv("NANWATCH_ON_NAN", "Abort ")
    with pytest.raises(SettingsError, match="cannot be had here: this vLLM is another one"):
        register()
    monkeypatch.setenv("NANWATCH_ON_NAN", "observe")
    monkeypatch.setenv("NANWATCH_ENABLED", "1")
    register()
