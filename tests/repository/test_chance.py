"""What a property test tries is the same at each run, and the same again for the same seed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st


def drawn() -> list[list[int]]:
    found: list[list[int]] = []

    @given(st.lists(st.integers()))
    def draw(numbers: list[int]) -> None:
        found.append(numbers)

    draw()
    return found


def test_the_same_examples_are_tried_each_time() -> None:
    assert drawn() == drawn()
