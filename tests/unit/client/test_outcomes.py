"""What a status means for a task that waits (service-api.md, R17)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.models import KNOWN_STATUSES, Recipient, Transfer, TransferOutcome, describe, to_result
from outbound_transfer.waiting.wait import OUTCOMES, SUCCEED, Rules

EXPIRED, CANCELED, DONE, ON = "on_expired", "on_canceled", SUCCEED, None

#: status: what the wait does (with nobody, with somebody picked up); the same where one is enough.
TABLE = {
    "draft": ((ON, ON), (ON, DONE)),
    "pending": ((ON, ON), (ON, DONE)),
    "partial": ((ON, ON), (DONE, DONE)),
    "complete": ((DONE, DONE), (DONE, DONE)),
    "canceled": ((CANCELED, CANCELED), (CANCELED, CANCELED)),
    "expired": ((EXPIRED, EXPIRED), (EXPIRED, DONE)),
    "unknown": ((ON, ON), (ON, DONE)),
    "of_tomorrow": ((ON, ON), (ON, DONE)),
}


def transfer(status: str, *picked_up: bool) -> Transfer:
    recipients = (Recipient(f"{n}@example.com", picked_up_at="2026" if up else None) for n, up in enumerate(picked_up))
    return Transfer("t", status, "S", recipients=tuple(recipients))


@pytest.mark.parametrize("status", TABLE)
@pytest.mark.parametrize("accept_partial", [False, True])
@pytest.mark.parametrize("somebody", [False, True])
@pytest.mark.parametrize("on_expired", OUTCOMES)
@pytest.mark.parametrize("on_canceled", OUTCOMES)
def test_every_status_under_every_rule(
    status: str, accept_partial: bool, somebody: bool, on_expired: str, on_canceled: str
) -> None:
    expected = TABLE[status][accept_partial][somebody]
    choices = {EXPIRED: on_expired, CANCELED: on_canceled}
    rules = Rules(on_expired, on_canceled, accept_partial)
    assert rules.outcome_of(transfer(status, somebody, False)) is choices.get(expected, expected)  # type: ignore[call-overload]


def test_the_known_statuses_are_the_documents() -> None:
    assert set(KNOWN_STATUSES) == set(TABLE) - {"unknown", "of_tomorrow"}


def test_the_story_stays_short() -> None:
    assert len(describe(transfer("pending", *[False] * 250))) < 200
    assert describe(transfer("pending", *[False] * 6)).endswith("4@example.com …")


RECIPIENTS = st.lists(st.builds(Recipient, st.text(), st.none(), st.none() | st.text()), max_size=5)


@given(RECIPIENTS, st.text())
def test_each_recipient_has_picked_up_or_not(recipients: list[Recipient], reason: str) -> None:
    expired = Transfer("t", "expired", "Report", recipients=tuple(recipients))
    outcome = TransferOutcome.from_transfer(expired, reason)
    assert sorted([*outcome.picked_up, *outcome.not_picked_up]) == sorted(each.email for each in recipients)
    assert len(outcome.picked_up) == len(expired.picked_up)
    result = to_result(expired)
    assert result["not_picked_up"] == outcome.not_picked_up
    assert msgspec.convert(result, Transfer) == expired, "what a trigger's event has is read back"
