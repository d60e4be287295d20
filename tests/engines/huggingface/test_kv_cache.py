"""The KV cache of Transformers: what is not finite in it is found to the token, and gone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nanwatch.engines.huggingface.continuous import kv_cache
from tests.engines.huggingface.batches import Prompt, quick_collections
from tests.engines.huggingface.sessions import Session, session, talkative_llama


@pytest.fixture(scope="module")
def running() -> Iterator[Session]:
    """A session with the blocks of one prompt in its prefix cache."""
    with quick_collections(), session(talkative_llama(), allow_block_sharing=True) as made:
        made.ask({"a": Prompt([5, 6, 7, 8, 9, 10, 11, 12, 13], 2)})
        yield made


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("blocks_at_once", [1, 3, 1000])
def test_a_bad_value_is_found_where_the_engine_put_it(
    running: Session, monkeypatch: pytest.MonkeyPatch, bad: float, blocks_at_once: int
) -> None:
    """Written through the views by which the engine writes: layer, token and block are its own."""
    allocator = running.allocator
    monkeypatch.setattr(kv_cache, "BYTES_AT_ONCE", blocks_at_once * allocator.bytes_per_block)
    before = allocator._copy_view.clone()
    keys, values = allocator._kv_token_views[1]
    block = 20
    row = block * allocator.block_physical_stride + 3
    keys[row, 0, :2] = bad
    values[row, 1, 5] = bad
    found = kv_cache.zero_bad_values(allocator)
    assert list(found) == [block]
    expected = torch.zeros(2, 4, dtype=torch.int64)
    expected[1, 3] = 3
    assert torch.equal(found[block], expected)
    assert running.cache_is_finite()
    changed = (allocator._copy_view != before).any(1).nonzero().flatten().tolist()
    assert set(changed) <= {block}
    assert kv_cache.zero_bad_values(allocator) == {}


def test_a_forgotten_block_is_matched_by_no_prompt_and_is_free(running: Session) -> None:
    allocator = running.allocator
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    first, second = allocator.match_prefix_blocks(prompt)
    assert running.all_blocks_are_back()
    kv_cache.forget_content(allocator, second)
    assert allocator.match_prefix_blocks(prompt) == [first]
    kv_cache.forget_content(allocator, first)
    kv_cache.forget_content(allocator, first)
    assert allocator.match_prefix_blocks(prompt) == []
    assert running.all_blocks_are_back()


def test_what_only_padding_reads_is_told_apart(running: Session) -> None:
    held: Any = running.allocator
    first_of_a_request = 2 * held.blocks_per_sector
    assert kv_cache.is_reserved(held, first_of_a_request - 1)
    assert not kv_cache.is_reserved(held, first_of_a_request)
