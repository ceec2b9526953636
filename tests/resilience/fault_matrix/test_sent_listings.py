"""Every bent listing of sent transfers, and tests that they find a safeguard that is taken out."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.protocol import flows
from resilience.fault_matrix.sent_listings import bends, others_bends, run_bend


@pytest.mark.slow
def test_no_bent_listing_shows_that_nothing_was_sent() -> None:
    outcomes = [run_bend(bend) for bend in bends()]
    assert len(outcomes) > 10_000
    assert [(each.name, each.violations) for each in outcomes if each.violations][:5] == []


def test_no_bent_old_row_of_another_stops_a_delivery() -> None:
    outcomes = [run_bend(bend) for bend in others_bends()]
    assert len(outcomes) > 500
    assert [(each.name, each.violations) for each in outcomes if each.violations][:5] == []


# Tests of the tests: with a safeguard taken out, the bends must find it.


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("known_identity_of", flows.identity_of),
        ("_MIN_SENT_AT", 0.0),
        ("_MAX_OFFSET_SECONDS", 0),
    ],
    ids=["unknown parts", "implausible times", "times without an offset"],
)
def test_the_bends_find(name: str, replacement: Any, monkeypatch: Any) -> None:
    if name == "known_identity_of":
        monkeypatch.setattr(flows, name, lambda row: replacement(row) if hasattr(row, "recipients") else (None, None))
    else:
        monkeypatch.setattr(flows, name, replacement)
    assert any(run_bend(bend).violations for bend in bends())
