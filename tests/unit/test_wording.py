"""Counts with their nouns, and sizes."""

from __future__ import annotations

import pytest

from outbound_transfer.wording import format_bytes, pluralize


@pytest.mark.parametrize(("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (21, "21 files")])
def test_only_one_has_the_singular(count: int, text: str) -> None:
    assert pluralize(count, "file") == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999.6, "1 kB"), (1_024, "1.02 kB"), (999_600, "1 MB"), (10**9, "1 GB"), (5 * 10**15, "5,000 TB")],
)
def test_sizes_are_in_units_of_a_thousand(size: float, text: str) -> None:
    assert format_bytes(size) == text
