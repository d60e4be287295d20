"""Text from the journal, made fit for UTF-8: engines hand over any string as an id or a name."""


def valid_text(value: str) -> str:
    r"""Write each lone surrogate as its escape, "a\ud800" as `a\ud800`: UTF-8 has no place for it."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def label_value(value: str) -> str:
    r"""Return text that Prometheus takes as a label's value; to its parser a NUL is the scrape's end."""
    return valid_text(value).replace("\0", r"\x00")
