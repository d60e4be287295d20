"""Tells how many tokens assisted decoding has drafted, before the model verifies them.

generate() reads the last K+1 positions of the forward that verifies K drafted tokens. Most models return
no more than these; those without `logits_to_keep` return the whole prompt's at the first forward.
"""

from collections.abc import Callable
from typing import Any


def report_drafts(generator: Any, report: Callable[[int], object]) -> None:
    """Have `report` called with K each time this generator of candidates has drafted K tokens.

    The generator is of one call, and generate() asks for its class: so it is changed, not wrapped.
    """
    draft = generator.get_candidates

    def get_candidates(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        candidates = draft(input_ids, *args, **kwargs)
        report(candidates[0].shape[1] - input_ids.shape[1])
        return candidates

    generator.get_candidates = get_candidates
