"""A prompt that is read in chunks: whose row of a chunk lies outside of its prompt.

    R = samples, L = positions of the longest prompt; the logits of a chunk are read at its last position
Prompts of 4 and 2 tokens, padded on the left, chunks of 2; the mask is
    [[1, 1, 1, 1],
     [0, 0, 1, 1]]
Chunk 1 ends at position 1, where row 1 has not begun: padding. Chunk 2 is the last: generate() chooses
tokens from all of its rows, also where a prompt is padded on the right and its last position is padding.
"""

from typing import Any

from torch import Tensor

MASK_DIMENSIONS = 2


class PromptChunks:
    """Counts the chunks of one prefill.

    Args:
        size: positions in a chunk.
        begin: positions that the cache holds already.
        mask: [R, L], 0 where a position is padding; None where none is.
    """

    def __init__(self, size: int, begin: int, mask: Tensor | None) -> None:
        self._size, self._end, self._mask = size, begin, mask

    def next(self) -> Tensor | None:
        """Return the rows [R] bool of the next chunk that lie outside of their prompt, None for none."""
        self._end += self._size
        if self._mask is None or self._end >= self._mask.shape[1]:
            return None
        return self._mask[:, self._end - 1] == 0


def chunks_of(size: int | None, model_kwargs: dict[str, Any]) -> PromptChunks | None:
    """Return the chunks of a prefill with these arguments of generate()'s, None for a whole one."""
    if size is None:
        return None
    cache, mask = model_kwargs.get("cache"), model_kwargs.get("attention_mask")
    is_of_positions = isinstance(mask, Tensor) and mask.dim() == MASK_DIMENSIONS
    begin = int(cache.get_seq_length()) if cache is not None else 0
    return PromptChunks(size, begin, mask if is_of_positions else None)
