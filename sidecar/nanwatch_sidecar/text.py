"""Text from the journal, made fit for UTF-8: engines hand over any string as an id or a name."""


def valid_text(value: str) -> str:
    r"""Write each lone surrogate as its escape, "a\ud800" as `a\ud800`: UTF-8 has no place for it."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")
