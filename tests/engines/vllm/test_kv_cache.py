"""Scanning and zeroing blocks of a KV cache, on real tensors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanwatch.engines.vllm.containment.kv_cache import KVCache, NotUnderstoodError

NAN = float("nan")


def cache_of(*tensors: Any, num_blocks: int = 4) -> KVCache:
    """Bind the tensors to layers as a vLLM runner does."""
    names = [f"layers.{number}" for number in range(len(tensors))]
    context = {name: SimpleNamespace(kv_cache=tensor) for name, tensor in zip(names, tensors, strict=True)}
    return KVCache.of(
        SimpleNamespace(
            kv_cache_config=SimpleNamespace(
                num_blocks=num_blocks, kv_cache_groups=[SimpleNamespace(layer_names=names)]
            ),
            compilation_config=SimpleNamespace(static_forward_context=context),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_nan_in_any_layer_poisons_its_block_and_no_other(dtype: torch.dtype) -> None:
    first, last = (torch.ones(4, 2, 3, 8, dtype=dtype) for _ in range(2))
    first[0, 0, 0, 0] = last[3, 1, 2, 7] = NAN
    last[2, 0, 0, 0] = float("inf")
    cache = cache_of(first, last)
    assert cache.scan([0, 1, 2, 3]).tolist() == [1, 0, 0, 1]
    assert cache.scan([3]).tolist() == [1]
    assert cache.scan([2, 1]).tolist() == [0, 0]


def test_zeroing_reaches_every_layer_of_these_blocks_and_nothing_else() -> None:
    layers = [torch.full((4, 2, 3), NAN), torch.full((4, 5), 2.0)]
    cache_of(*layers).zero([1, 3])
    for layer in layers:
        assert layer[[1, 3]].eq(0).all()
    assert layers[0][[0, 2]].isnan().all()
    assert layers[1][[0, 2]].eq(2).all()


def test_a_block_may_be_several_rows_of_the_kernels() -> None:
    """4 blocks in 8 rows: block 3 is rows 6 and 7."""
    rows = torch.ones(8, 2)
    rows[7, 1] = NAN
    cache = cache_of(rows)
    assert cache.scan([0, 3]).tolist() == [0, 1]
    cache.zero([3])
    assert rows.tolist() == [[1, 1]] * 6 + [[0, 0]] * 2


def test_a_view_with_the_blocks_inside_is_zeroed_in_place() -> None:
    """Layers that are packed block by block: [B, L, ...], of which a layer's cache is a slice."""
    packed = torch.full((4, 2, 3), NAN)
    cache_of(packed[:, 0], packed[:, 1]).zero([2])
    assert packed[2].eq(0).all()
    assert packed[[0, 1, 3]].isnan().all()


def test_what_cannot_be_looked_at_is_refused_with_its_kind() -> None:
    with pytest.raises(NotUnderstoodError, match=r"layers\.0 is torch\.uint8, not a tensor of float32"):
        cache_of(torch.zeros(4, 2, dtype=torch.uint8))
    with pytest.raises(NotUnderstoodError, match=r"layers\.0 is list, not a tensor"):
        cache_of([torch.zeros(4, 2)])
    with pytest.raises(NotUnderstoodError, match=r"has 6 rows for 4 blocks"):
        cache_of(torch.zeros(6, 2))
    with pytest.raises(NotUnderstoodError, match=r"no attention layer has a KV cache"):
        cache_of()
