"""The cells that a kernel wrote, added up to rows."""

from array import array

import pytest

from nanwatch.findings import CLEAN, Findings, Shape, add_up


def cells(*values: int) -> bytes:
    return array("i", values).tobytes()


def test_counts_alone_are_taken_as_they_are() -> None:
    assert add_up(cells(0, 5, 1), Shape(3)) == Findings(cells(0, 5, 1), CLEAN, CLEAN)


def test_the_parts_of_a_row_are_added_up() -> None:
    nans, posinf, masked = (3, 0, 4, 0, 0, 9), (0, 0, 0, 1, 1, 0), (0, 0, 0, 0, 0, 0)
    found = add_up(cells(*nans, *posinf, *masked), Shape(rows=2, parts=3, planes=3))
    assert found == (cells(7, 9), cells(0, 2), cells(0, 0))


def test_a_row_is_fully_masked_only_if_each_of_its_parts_is() -> None:
    masked = (1, 0, 1, 1)
    found = add_up(cells(*[0] * 8, *masked), Shape(rows=2, parts=2, planes=3))
    assert found.masked == cells(0, 1)


@pytest.mark.parametrize("shape", [Shape(4), Shape(2, 2, 3), Shape(0), Shape(0, 1, 3)], ids=str)
def test_a_clean_step_is_zeros_for_each_row(shape: Shape) -> None:
    found = add_up(bytes(shape.cells * 4), shape)
    assert found.nans == bytes(shape.rows * 4)
    assert (found.posinf, found.masked) == (CLEAN, CLEAN)
