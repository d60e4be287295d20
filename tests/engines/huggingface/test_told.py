"""What stopped the engine, in the words for each client."""

import pytest

from nanwatch import NanLogitsError
from nanwatch.engines.huggingface.continuous.told import told_to, told_to_all

NOTE = " (and in 3 rows whose requests nobody named)"


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("a", "NaNs detected in logits: {'a': 5}"),
        ("b", "NaNs detected in logits: {'b': 2}"),
        ("c", "the engine was stopped: 7 NaNs in the logits of 2 other requests"),
    ],
)
def test_a_client_reads_of_its_own_request_and_of_others_only_how_many(reader: str, text: str) -> None:
    assert str(told_to(reader, NanLogitsError({"a": 5, "b": 2}, NOTE))) == text + NOTE


def test_rows_that_nobody_named_are_told_to_everybody() -> None:
    error = NanLogitsError({}, NOTE)
    assert told_to("a", error) is told_to_all(error) is error
