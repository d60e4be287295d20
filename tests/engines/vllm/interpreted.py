"""vLLM's second model runner on a CPU: its Triton kernels run in Triton's interpreter.

Call `prepare` before vllm is imported. What stands in for a GPU here: a backend named "cpu" that
vLLM finds, masks that the interpreter takes for integers, and vLLM's own NaN count, whose isnan
the interpreter does not have.
"""

import os
from typing import Any


def prepare() -> None:
    """Have this process run the second model runner."""
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    import triton.backends

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return False

    class Backend:
        driver = Driver
        compiler = None

    triton.backends.backends["cpu"] = Backend()
    _take_masks_for_booleans()


def prepare_vllm() -> None:
    """Once vllm is imported: give it a NaN count that the interpreter can run."""
    import torch
    from vllm.v1.worker.gpu.sample import sampler
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    def get_num_nans(logits: torch.Tensor) -> torch.Tensor:
        return logits.isnan().sum(-1, dtype=torch.int32)

    sampler.get_num_nans = rejection_sampler.get_num_nans = get_num_nans


def _take_masks_for_booleans() -> None:
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    load, store = Builder.create_masked_load, Builder.create_masked_store

    def as_booleans(mask: Any) -> Any:
        if mask is not None and mask.data.dtype != np.bool_:
            mask.data = mask.data.astype(np.bool_)
        return mask

    def masked_load(self: Any, pointers: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        return load(self, pointers, as_booleans(mask), *args, **kwargs)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        return store(self, pointers, value, as_booleans(mask), *args, **kwargs)

    Builder.create_masked_load, Builder.create_masked_store = masked_load, masked_store
