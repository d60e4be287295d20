"""What an engine says to `abort` in modes in which it was not verified: `python -m ... FOLDER`.

It prints one JSON line a mode: the configuration is made as `vllm serve` makes it, and refused there, or not.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

MODES: dict[str, dict[str, Any]] = {
    "verified": {},
    "pipeline": {"pipeline_parallel_size": 2},
    "data": {"data_parallel_size": 2},
    "connector": {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
    "events": {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}},
    "pooling": {"runner": "pooling"},
    "two": {
        "pipeline_parallel_size": 2,
        "kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"},
    },
}


def main(folder: str) -> None:
    """Try each mode."""
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "NANWATCH_ON_NAN": "abort"})
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm.config import KVEventsConfig, KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    for name, options in MODES.items():
        more = dict(options)
        if "kv_transfer_config" in more:
            more["kv_transfer_config"] = KVTransferConfig(**more["kv_transfer_config"])
        if "kv_events_config" in more:
            more["kv_events_config"] = KVEventsConfig(**more["kv_events_config"])
        try:
            EngineArgs(
                folder, load_format="dummy", dtype="float32", max_model_len=256, **more
            ).create_engine_config()
            said = ""
        except Exception as error:  # noqa: BLE001  what it is, is what is printed
            said = f"{type(error).__name__}: {error}"
        print(json.dumps({"mode": name, "said": said}), flush=True)
    print(json.dumps({"mode": "windowed", "said": _windowed(Path(folder))}), flush=True)


def _windowed(folder: Path) -> str:
    """Start an engine whose KV cache turns out to be of sliding windows."""
    from vllm import LLM

    changed = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}
    place = folder.with_name("windowed")
    shutil.copytree(folder, place)
    configuration = json.loads((place / "config.json").read_text()) | changed
    (place / "config.json").write_text(json.dumps(configuration))
    try:
        LLM(
            str(place),
            load_format="dummy",
            enforce_eager=True,
            dtype="float32",
            max_model_len=256,
            kv_cache_memory_bytes=64 << 20,
        )
    except Exception as error:  # noqa: BLE001  what it is, is what is printed
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
