"""Somebody's test suite, with one test for each thing that a test can do; run by test_plugin.py.

The model copies its input through one linear layer, so that a NaN in row 1 of the input is 8 NaN in
row 1 of the logits.
"""

import threading
import unittest
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nanwatch

CLEAN = torch.zeros(2, 4)
BAD = torch.tensor([[0.0] * 4, [float("nan")] * 4])


class Output:
    def __init__(self, logits: Any) -> None:
        self.logits = logits


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(x)}


class Wrapper(nn.Module):
    """Gives logits that are made from its model's."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.model, self.change = Model(), change

    def forward(self, x: Tensor) -> Output:
        return Output(self.change(self.model(x)["logits"]))


def test_clean() -> None:
    Model()(CLEAN)


def test_bad() -> None:
    Model()(BAD)


def test_named() -> None:
    model = Model()
    with nanwatch.request_ids(["a", "b"]):
        model(CLEAN)
        model(BAD)
        model(BAD)


def test_positions() -> None:
    Model()(BAD.expand(3, 2, 4))


def test_wrapped_clean() -> None:
    Wrapper(torch.nan_to_num)(BAD)


def test_wrapped_bad() -> None:
    Wrapper(lambda logits: logits)(BAD)


def test_no_logits() -> None:
    nn.Linear(4, 8)(BAD)
    Wrapper(lambda _: None)(CLEAN)


@pytest.mark.allow_nan
def test_may() -> None:
    Model()(BAD)


class TestOfUnittest(unittest.TestCase):
    def test_bad(self) -> None:
        Model()(BAD)


@pytest.mark.anyio
async def test_async() -> None:
    Model()(BAD)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_each(value: float) -> None:
    Model()(torch.full((1, 4), value))


def test_in_a_thread() -> None:
    thread = threading.Thread(target=Model(), args=(BAD,))
    thread.start()
    thread.join()


def test_compiled() -> None:
    torch.compile(Model(), fullgraph=True, backend="eager")(BAD)


def test_raises() -> None:
    Model()(BAD)
    raise KeyError("its own")


@pytest.fixture
def made_with_nan() -> None:
    Model()(BAD)


def test_fixture(made_with_nan: None) -> None:
    pass


@pytest.mark.xfail(strict=True)
def test_expected_to_fail() -> None:
    Model()(BAD)


def test_skipped_inside_a_forward() -> None:
    Wrapper(lambda _: pytest.skip("its own"))(BAD)


def test_after_it() -> None:
    Model()(BAD)
