"""When a wait is due, how it ends, and what a status means for it (service-api.md, R17)."""

from __future__ import annotations

import time
from itertools import product

import pytest

from outbound_transfer.client.models import KNOWN_STATUSES, Recipient, Transfer
from outbound_transfer.waiting.wait import OUTCOMES, SUCCEED, Rules, Wait

SENT, EXPIRES = "2024-01-01T00:00:00Z", "2024-01-11T00:00:00Z"
DAY = 86_400.0


def at(seconds: float) -> float:
    """So many seconds after the transfer was sent."""
    return 1_704_067_200.0 + seconds


def wait(interval: float) -> Wait:
    return Wait("t", interval, at(30 * DAY), Rules(), asked=at(0))


def transfer(expires_at: str = EXPIRES) -> Transfer:
    return Transfer("t", "pending", "Report", expires_at, None, (Recipient("ann@example.com"),), sent_at=SENT)


def test_waits_that_begin_at_other_moments_are_due_once_in_each_interval_and_together() -> None:
    one, other = wait(interval=60.0), wait(interval=60.0)
    one.asked, other.asked = at(1), at(40)
    due = [[each.is_due(at(0), at(moment)) for each in (one, other)] for moment in (41, 59, 61)]
    assert due == [[False, False], [False, False], [True, True]]


def test_the_clock_of_the_service_decides_when_a_transfer_has_expired() -> None:
    one = wait(interval=1e9)
    one.update(transfer(), at(0), ahead=30.0)
    assert not one.is_due(at(-1e8), at(10 * DAY - 30))
    assert one.is_due(at(-1e8), at(10 * DAY + 1 - 30))
    one.update(OSError("down"), at(10 * DAY + 1 - 30))
    assert not one.is_due(at(-1e8), at(10 * DAY + 2 - 30)), "a moment is polled once"


def test_a_deadline_that_passes_by_a_wrong_clock_ends_no_wait() -> None:
    """The clock was ahead when a call began, and was set before its response."""
    one = wait(interval=60.0)
    one.deadline = time.time() + 60
    one.update(transfer(), time.time() + 3_600)
    assert one.end is None
    assert one.is_due(at(0), time.time() + 61)


def test_an_expiry_that_is_put_off_at_each_read_causes_no_polls() -> None:
    one = wait(interval=3_600.0)
    one.update(transfer(), at(0))
    one.update(transfer("2024-01-01T00:01:00Z"), at(1))
    assert not one.is_due(at(0), at(70))


EXPIRED, CANCELED, DONE, ON = "on_expired", "on_canceled", SUCCEED, None

#: status: what the wait does (with nobody, with somebody picked up); the same where one is enough.
TABLE = {
    **dict.fromkeys(("draft", "pending", "unknown", "of_tomorrow"), ((ON, ON), (ON, DONE))),
    "partial": ((ON, ON), (DONE, DONE)),
    "complete": ((DONE, DONE), (DONE, DONE)),
    "canceled": ((CANCELED, CANCELED), (CANCELED, CANCELED)),
    "expired": ((EXPIRED, EXPIRED), (EXPIRED, DONE)),
}


def of_status(status: str, *picked_up: bool) -> Transfer:
    recipients = (Recipient(f"{n}@example.com", picked_up_at="2026" if up else None) for n, up in enumerate(picked_up))
    return Transfer("t", status, "S", recipients=tuple(recipients))


@pytest.mark.parametrize("status", TABLE)
def test_every_status_under_every_rule(status: str) -> None:
    for accept_partial, somebody, on_expired, on_canceled in product((False, True), (False, True), OUTCOMES, OUTCOMES):
        expected = TABLE[status][accept_partial][somebody]
        outcome = {EXPIRED: on_expired, CANCELED: on_canceled}.get(str(expected), expected)
        rules = Rules(on_expired, on_canceled, accept_partial)
        assert rules.outcome_of(of_status(status, somebody, False)) is outcome
    assert set(KNOWN_STATUSES) == set(TABLE) - {"unknown", "of_tomorrow"}
