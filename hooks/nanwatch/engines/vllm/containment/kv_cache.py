"""The KV cache of one worker, looked at and cleaned by block. Every layer has its own tensor.

    B = blocks of the scheduler, K = kernel blocks, L = layers
Most kernels share the scheduler's blocks, [B, ...]; where theirs are smaller the tensor is [K, ...] with
K = B * ratio, and block b is rows b * ratio to (b + 1) * ratio - 1. B=4, K=8: block 3 is rows 6 and 7.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


class Layer(NamedTuple):
    """One layer's cache, [K, ...], and how many of its rows make a block."""

    cache: Tensor
    ratio: int


class NotUnderstoodError(TypeError):
    """The KV cache is not of the kind that can be looked at."""


class KVCache:
    """All layers of one worker's cache."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._layers = tuple(layers)

    @classmethod
    def of(cls, runner: Any) -> "KVCache":
        """Find the tensors that a runner's attention layers are bound to.

        Raises:
            NotUnderstoodError: there are none, or they are not rows of floats by block.
        """
        config = runner.kv_cache_config
        context = runner.compilation_config.static_forward_context
        layers: dict[int, Layer] = {}
        for name in (name for group in config.kv_cache_groups for name in group.layer_names):
            layer = _understood(name, context[name].kv_cache, config.num_blocks)
            layers[layer.cache.data_ptr()] = layer
        if not layers:
            raise NotUnderstoodError("no attention layer has a KV cache")
        return cls(layers.values())

    @property
    def on_gpu(self) -> bool:
        """Whether it is on a CUDA device."""
        return self._layers[0].cache.device.type == "cuda"

    @torch.inference_mode()
    def scan(self, blocks: Sequence[int]) -> Tensor:
        """Return for each of the blocks whether any layer holds a NaN in it, [len(blocks)] int32.

        Read one layer at a time on the current stream; the host waits for nothing.
        """
        found = None
        for layer in self._layers:
            rows = self._rows(layer, blocks)
            nan = layer.cache.index_select(0, rows).isnan().flatten(1).any(1)
            nan = nan.view(len(blocks), layer.ratio).any(1)
            found = nan if found is None else found | nan
        assert found is not None  # noqa: S101  there is a layer: see `of`
        return found.to(torch.int32)

    @torch.inference_mode()
    def zero(self, blocks: Sequence[int]) -> None:
        """Overwrite the blocks with zeros in every layer, on the current stream."""
        for layer in self._layers:
            layer.cache.index_fill_(0, self._rows(layer, blocks), 0)

    def _rows(self, layer: Layer, blocks: Sequence[int]) -> Tensor:
        rows = [block * layer.ratio + at for block in blocks for at in range(layer.ratio)]
        return torch.tensor(rows, pin_memory=self.on_gpu).to(layer.cache.device, non_blocking=True)


def _understood(name: str, cache: Any, num_blocks: int) -> Layer:
    if not isinstance(cache, Tensor) or cache.dtype not in FLOATS:
        kind = str(cache.dtype) if isinstance(cache, Tensor) else type(cache).__name__
        raise NotUnderstoodError(
            f"the KV cache of {name} is {kind}, not a tensor of float32, bfloat16 or float16"
        )
    ratio, rest = divmod(cache.shape[0], num_blocks)
    if rest or not ratio:
        raise NotUnderstoodError(f"the KV cache of {name} has {cache.shape[0]} rows for {num_blocks} blocks")
    return Layer(cache, ratio)
