"""The KV cache of continuous batching: which blocks hold a value that is not finite, and cleaning them.

    B = blocks of the cache, L = layers, T = tokens of a block, H = heads, D = their size
An allocator keeps the pages of a block side by side, [B, L, 2, T, H, D], keys before values. Infinity
counts with NaN: attention masks by multiplying with zero, and makes NaN of it one layer later.

The whole cache is looked at, blocks that nobody holds as well, and afterwards there is no such value
anywhere. This waits for the device; it is done after a hit only.
"""

from typing import Any

import torch
from torch import Tensor

BYTES_AT_ONCE = 256 << 20  # of the cache; a mask of half that size is made beside it
RESERVED_SECTORS = 2  # at the cache's start, for padding: no request is given a block of these


def zero_bad_values(allocator: Any) -> dict[int, Tensor]:
    """Put 0 where a value is not finite.

    Returns:
        For each block that held one, how many: [L, T] int64 on the host, layers in the allocator's order.
    """
    blocks = _blocks(allocator)
    found: dict[int, Tensor] = {}
    at_once = max(1, BYTES_AT_ONCE // allocator.bytes_per_block)
    for begin in range(0, blocks.shape[0], at_once):
        part = blocks[begin : begin + at_once]
        is_bad = part.isfinite().logical_not_()
        counts = is_bad.sum(dim=(2, 4, 5)).cpu()  # [b, L, T]
        hit = counts.flatten(1).any(1).nonzero().flatten().tolist()
        if hit:
            part.masked_fill_(is_bad, 0)
        found |= {begin + block: counts[block] for block in hit}
    return found


def wipe(allocator: Any, blocks: list[int]) -> None:
    """Put 0 into whole blocks, and take them out of the prefix cache; waits for nothing."""
    for block in blocks:
        forget_content(allocator, block)
    where = torch.tensor(blocks, dtype=torch.long, device=allocator._copy_view.device)  # noqa: SLF001
    allocator._copy_view.index_fill_(0, where, 0)  # noqa: SLF001


def is_reserved(allocator: Any, block: int) -> bool:
    """Whether a block is one that only padding reads and writes."""
    return block < RESERVED_SECTORS * int(allocator.blocks_per_sector)


def forget_content(allocator: Any, block: int) -> None:
    """Take a block out of the prefix cache; one that was kept for it alone is free from now on."""
    ledger = allocator.ledger
    block_hash = ledger.block_to_hash.pop(block, None)
    if block_hash is not None:
        ledger.hash_to_block.pop(block_hash)
    if block in ledger.cached_blocks:
        del ledger.cached_blocks[block]
        allocator.pool.free_blocks(allocator.index, [block])


def _blocks(allocator: Any) -> Tensor:
    """Return the cache as [B, L, 2, T, H, D]; it shares its memory."""
    shape = (
        -1,
        len(allocator.layer_indices),
        2,
        allocator.tokens_per_page,
        allocator.num_key_value_heads,
        allocator.head_dim,
    )
    flat: torch.Tensor = allocator._copy_view.view(allocator.cache_dtype)  # noqa: SLF001  there is no public one
    return flat.view(shape)
