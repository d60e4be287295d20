"""The error of fail-fast."""

import pickle
from collections.abc import Iterator, Mapping

import pytest

from nanwatch import NanLogitsError, raise_if_nan_logits


def test_it_names_every_corrupted_request_and_only_those() -> None:
    with pytest.raises(NanLogitsError, match=r"^NaNs detected in logits: \{'b': 5, 'd': 1\}$") as raised:
        raise_if_nan_logits({"a": 0, "b": 5, "c": 0, "d": 1})
    assert raised.value.requests == {"b": 5, "d": 1}
    assert isinstance(raised.value, RuntimeError)


class _LookedAtOnce(Mapping[str, int]):
    """A mapping that allows one pass over its values and nothing else."""

    def __getitem__(self, key: str) -> int:
        raise AssertionError("looked up")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        raise AssertionError("measured")

    def values(self) -> Iterator[int]:  # type: ignore[override]
        return iter((0, 0))


def test_a_clean_mapping_costs_one_look_at_its_values() -> None:
    raise_if_nan_logits(_LookedAtOnce())
    raise_if_nan_logits({})


def test_it_survives_the_way_from_a_worker_process_with_its_text() -> None:
    error = pickle.loads(pickle.dumps(NanLogitsError({"a": 1}, " (a note)")))  # noqa: S301  our own bytes
    assert (error.requests, str(error)) == ({"a": 1}, "NaNs detected in logits: {'a': 1} (a note)")
