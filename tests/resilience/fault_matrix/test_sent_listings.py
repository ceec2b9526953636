"""Every bent listing of sent transfers; and that they can find something."""

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


def test_the_bends_find_a_time_that_is_believed(monkeypatch: Any) -> None:
    monkeypatch.setattr(flows, "_MIN_SENT_AT", 0.0)
    assert any(run_bend(bend).violations for bend in bends())
