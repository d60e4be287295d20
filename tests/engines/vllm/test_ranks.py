"""The label `engine`: the data-parallel index, as vLLM's own metrics name it."""

from types import SimpleNamespace

from nanwatch.engines.vllm.ranks import engine_index


def test_the_index_goes_before_the_rank() -> None:
    """For dense models vLLM resets data_parallel_rank to 0 in every engine."""
    assert engine_index(SimpleNamespace(data_parallel_index=3, data_parallel_rank=0)) == "3"


def test_an_older_vllm_has_the_rank_alone() -> None:
    assert engine_index(SimpleNamespace(data_parallel_rank=2)) == "2"
