"""Transformers' continuous batching: which of the requests in flight came out as NaN.

    handle = nanwatch.watch_generate(model)        # generate() and everything below
    model.generate_batch(prompts)                  # ids req_0, req_1, ...
    manager = model.init_continuous_batching()     # ids as given to manager.add_request

Where it looks, and why there
    counting_model.py   the model that the engine calls is wrapped, so that the counts of the raw logits
                        are made and kept by the same captured graph or compiled function as the tokens
    processor.py        the counts are one more row of the buffer that holds the tokens: they go through
                        the engine's own double buffer and copy, and are read where it reads its tokens
    rows.py             whose the rows are, by the rule with which the engine hands out the tokens
    manager.py          when a request ends: finished, failed or cancelled, but not offloaded
    seams.py            what of the engine all this needs, by name
"""

from .attach import attach
from .watcher import ContinuousWatcher

__all__ = ["ContinuousWatcher", "attach"]
