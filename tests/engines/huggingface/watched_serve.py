"""`transformers serve`, attached to by hand: what `nanwatch run -- transformers serve` does by itself."""

import sys
from typing import Any

import torch
from transformers.cli.serving import transcription, utils
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.transformers import main
from transformers.generation.continuous_batching import continuous_api

import nanwatch
from nanwatch.engines.huggingface import continuous, serving

torch.set_num_threads(1)
continuous.attach(continuous_api)
serving.attach(utils)
serving.attach_transcription(transcription)

watched: list[Any] = []
load = ModelManager.load_model_and_processor


def load_and_watch(*args: Any, **kwargs: Any) -> Any:
    model, processor = load(*args, **kwargs)
    if "--continuous-batching" not in sys.argv and not any(model is known for known in watched):
        watched.append(model)
        nanwatch.watch_generate(model)
    return model, processor


ModelManager.load_model_and_processor = load_and_watch  # type: ignore[method-assign]
sys.argv[0] = "transformers"
main()  # type: ignore[no-untyped-call]
