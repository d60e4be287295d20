"""A vLLM engine in this process: of either model runner, under either scheduling, with one of our plug-ins.

vLLM takes its environment when it is imported, so there is one engine a process, and a program for each.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
OPTIONS: dict[str, Any] = {
    "load_format": "dummy",
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 64 << 20,
    "disable_log_stats": False,
    "served_model_name": "tiny",
}


def build(folder: Path, model_runner: str, scheduling: str, plug: str, **more: Any) -> Any:
    """Return an LLM of the tiny model in `folder`.

    Args:
        folder: of the model.
        model_runner: v1 or v2.
        scheduling: sync or async.
        plug: the plug-in of this folder that spoils something: planting or poisoning.
        more: options of vLLM's, beside OPTIONS or in their place.
    """
    os.environ.update(ENVIRONMENT)
    if scheduling == "async":
        os.environ["PLANT_ASYNC"] = "1"
    if model_runner == "v2":
        from tests.engines.vllm import interpreted

        interpreted.prepare()
    import vllm

    if model_runner == "v2":
        interpreted.prepare_vllm()
    import_module(f"tests.engines.vllm.{plug}").register()
    return vllm.LLM(str(folder), **OPTIONS | more)
