"""Why a request was ended, in words that its client reads; the first word tells them from vLLM's own."""

_MARK = "nanwatch: "


def reason_of_nan(values: int) -> str:
    """Say it for a corrupted request: `values` NaNs in one step of its logits."""
    return f"{_MARK}NaN in the logits of this request ({values} values in one step)"


def reason_of_neighbour(blocks: int) -> str:
    """Say it for one that reads KV blocks in which NaN was found."""
    return f"{_MARK}NaN in {blocks} KV cache blocks that this request shares with a corrupted one"


def is_ours(stop_reason: object) -> bool:
    """Whether an output's stop_reason is one of these."""
    return isinstance(stop_reason, str) and stop_reason.startswith(_MARK)


def told_to_client(reason: str) -> str:
    """Return the error text: "NaN in the logits of this request (7 values in one step); it was ended ..."."""
    return f"{reason.removeprefix(_MARK)}; it was ended and nothing it made of them was sent, send it again"
