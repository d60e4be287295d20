"""Who made the NaN of a step, and who only caught it. Pure; no engine.

With masked attention (sdpa, eager) all tokens of a step are in one matrix, and one bad value in the KV of a
layer makes NaN of every row: the row alone tells nothing. The KV does, because that of layer k is made
before the attention of layer k mixes the requests. Three requests of four layers, `b` has NaN from the
middle of layer 1 on; first layer whose KV holds it:
    a   layer 3      b   layer 2      c   layer 3      -> b made it, a and c caught it in attention 2
No bad value in any KV: it was made behind the last one, and whoever has it in its row made it.

Older than the step   A chunk of a prompt has no row in which its NaN would show. A later step, or another
                      request that shares the block, meets it as a thing of the past, and nobody can say
                      whose it was, or whether it would come again: its holders are given one more try.
                      Should it come again, those with the earliest layer made it.
Somebody who left     A request that ended or was cancelled while the step was in flight cannot be asked for
                      its KV any more. Where its row holds NaN it may have made it: all others are given
                      one more try. Nothing can leave twice, so this ends.
Whoever is given another try without need loses a prefill; whoever makes NaN again is ended then.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is bad in the KV of one request: in its first layer that holds a bad value."""

    layer: int
    values: int
    is_new: bool  # some of it was written by this step


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is ended, who is given another try, and whose try was the last one: see the rules at the top."""

    culprits: frozenset[str]
    spared: frozenset[str]
    warned: frozenset[str] = frozenset()  # of the spared: those with a bad value from the past


def evidence_of(
    blocks: Iterable[int], found: Mapping[int, Tensor], tokens: int, new_from: int
) -> Evidence | None:
    """Say what is bad in the KV of a request.

    Args:
        blocks: those that it holds, in order.
        found: how many values are bad in each bad block, [L, T].
        tokens: how many of its tokens are written, up to this step; what stands in its blocks behind them
            is of a step that was launched later, or not its own.
        new_from: the first token of the step. Blocks of T = 4, tokens = 6, new_from = 5: the one token
            of the step is the second of the second block.
    """
    bad = [
        (layer, at, int(counts[layer, token]))
        for place, block in enumerate(blocks)
        if (counts := found.get(block)) is not None
        for layer, token in counts.nonzero().tolist()
        if (at := place * counts.shape[1] + token) < tokens
    ]
    if not bad:
        return None
    first = min(layer for layer, _, _ in bad)
    in_first = [(at, values) for layer, at, values in bad if layer == first]
    return Evidence(first, sum(values for _, values in in_first), any(at >= new_from for at, _ in in_first))


def judge(
    evidence: Mapping[str, Evidence],
    with_nan_row: frozenset[str],
    *,
    warned_before: frozenset[str] = frozenset(),
    somebody_left: bool = False,
) -> Verdict:
    """Say who made the NaN.

    Args:
        evidence: of each running request with a bad value in its KV.
        with_nan_row: the running requests with NaN in a logits row of the step.
        warned_before: those that were given a last try.
        somebody_left: there is NaN in the row of a request that does not run any more.
    """
    hit = with_nan_row | evidence.keys()
    if somebody_left:
        return Verdict(frozenset(), hit)
    if not evidence:
        return Verdict(with_nan_row, frozenset())
    first = min(found.layer for found in evidence.values())
    suspects = {name: found for name, found in evidence.items() if found.layer == first}
    culprits = frozenset(name for name, found in suspects.items() if found.is_new or name in warned_before)
    return Verdict(culprits, hit - culprits, frozenset(suspects) - culprits)
