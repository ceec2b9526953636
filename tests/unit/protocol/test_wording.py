"""Counts with their nouns."""

from __future__ import annotations

import pytest

from outbound_transfer.protocol.wording import pluralize


@pytest.mark.parametrize(("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (21, "21 files")])
def test_only_one_has_the_singular(count: int, text: str) -> None:
    assert pluralize(count, "file") == text
