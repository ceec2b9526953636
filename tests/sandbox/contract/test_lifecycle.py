"""States and transitions that the state machine leaves out: duplicates, pickups by themselves, old records."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.rule("R18")

ANN = {"email": "ann@example.com"}
BOB = {"email": "bob@example.com"}
DAY = 86_400


@pytest.mark.rule("R11: ISO 8601")
def test_each_duplicate_recipient_collects_and_times_are_utc(api: Any, control: Any) -> None:
    transfer_id = api.sent(recipients=[ANN, ANN])["id"]
    assert control.pickup(transfer_id, "ann@example.com")["status"] == "partial"
    assert control.pickup(transfer_id, "ann@example.com")["status"] == "complete"
    transfer = api.get(transfer_id)
    times = [transfer["expires_at"], transfer["sent_at"], transfer["recipients"][0]["picked_up_at"]]
    assert all(time.endswith("Z") and "T" in time for time in times)


@pytest.mark.rule("R19")
def test_recipients_collect_by_themselves_after_the_time_that_is_set(api: Any, control: Any) -> None:
    control.patch_account(auto_pickup_seconds=600)
    early = api.sent(recipients=[ANN, BOB, ANN])["id"]
    control.advance_clock(599)
    late = api.sent()["id"]
    assert api.get(early)["status"] == "pending"
    control.advance_clock(2)
    assert [row["status"] for row in api.page()["data"]] == ["pending", "complete"]
    assert all(recipient["picked_up_at"] for recipient in api.get(early)["recipients"])
    control.patch_account(auto_pickup_seconds=None)
    control.advance_clock(DAY)
    assert api.get(late)["status"] == "pending"

    control.patch_account(auto_pickup_seconds=2 * DAY, delivery_window_days=1)
    expired, canceled = api.sent()["id"], api.sent()["id"]
    control.cancel(canceled)
    control.advance_clock(3 * DAY)
    assert [api.get(expired)["status"], api.get(canceled)["status"]] == ["expired", "canceled"]


@pytest.mark.rule("R19")
@pytest.mark.parametrize("collected", [0, 1])
def test_pending_and_partial_expire_to_the_second(api: Any, control: Any, collected: int) -> None:
    control.patch_account(delivery_window_days=2)
    transfer = api.sent(recipients=[ANN, BOB])
    if collected:
        control.pickup(transfer["id"], "ann@example.com")
    control.advance_clock(2 * DAY - 60)
    assert api.get(transfer["id"])["status"] == ("partial" if collected else "pending")
    control.advance_clock(61)
    expired = api.get(transfer["id"])
    assert expired["status"] == "expired"
    assert expired["expires_at"] == transfer["expires_at"]


def test_a_discarded_draft_is_gone_with_its_files(api: Any, refused: Any) -> None:
    draft = api.draft()
    file = api.attached(draft["id"])
    path = f"/v1/transfers/{draft['id']}"
    response = api.http.delete(path)
    assert (response.status_code, response.content) == (204, b"")
    for rest in ("", "/files", f"/files/{file['id']}"):
        refused(api.http.get(path + rest), 404, "not_found")


@pytest.mark.rule("R17: unknown")
def test_unknown_is_retrieved_and_never_listed(api: Any, control: Any) -> None:
    old, new = api.sent()["id"], api.sent()["id"]
    control.set_stored_status(old, "DELIVERED_V0")
    assert api.get(old)["status"] == "unknown"
    assert api.ids() == [new]
    control.patch_account(delivery_window_days=1)
    control.advance_clock(400 * DAY)
    assert api.get(old)["status"] == "unknown"
