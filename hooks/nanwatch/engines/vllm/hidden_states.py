"""Where a slice of a step's hidden states came from: [T, H] rows `offset` to `offset` + n."""

from torch import Tensor


def offset_in(whole: Tensor, part: Tensor) -> int | None:
    """Return the row of `whole` at which `part` begins, None where it is no slice of it.

    Nothing is read from a device: addresses are enough. whole at 0x1000 with rows of 256 bytes,
    part at 0x1200: offset 2.
    """
    if part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr() or not len(whole):
        return None
    row_bytes = whole.stride(0) * whole.element_size()
    offset, rest = divmod(part.data_ptr() - whole.data_ptr(), row_bytes) if row_bytes else (0, 1)
    return offset if rest == 0 and 0 <= offset < len(whole) else None
