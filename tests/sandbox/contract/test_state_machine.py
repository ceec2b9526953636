"""API, clock, pickups and cancels in any order, against a model of the statuses (service-api.md, R17 to R21).

Where several rules refuse a call and no rule gives their order, any of the errors is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from outbound_transfer_sandbox.testing import Sandbox

pytestmark = [pytest.mark.rule("R18"), pytest.mark.slow]

DRAFT_DAYS = 30
LISTED = ("pending", "partial", "complete", "canceled", "expired")
# A minute beside the days keeps every instant away from the edges, where a test's own seconds would decide.
MINUTE = 1 / (24 * 60)


@dataclass
class Model:
    """One transfer by the rules. Times are days of the virtual clock; `ended` is cancel or removal."""

    id: str
    created: float
    collected: list[bool]
    files: dict[str, str] = field(default_factory=dict)
    sent: float | None = None
    window: int = 0
    ended: str = ""

    def status(self, now: float) -> str:
        if self.ended:
            return self.ended
        if self.sent is None:
            return "gone" if now - self.created > DRAFT_DAYS else "draft"
        if all(self.collected):
            return "complete"
        if now - self.sent > self.window:
            return "expired"
        return "partial" if any(self.collected) else "pending"


class Service(RuleBasedStateMachine):
    transfers = Bundle("transfers")

    def __init__(self, api: Any, control: Sandbox) -> None:
        super().__init__()
        self.api = api
        self.control = control
        self.now = 0.0
        self.all: list[Model] = []
        self.downloads = 0

    @initialize(window=st.integers(1, 40), limit=st.sampled_from([1, 3, 1000]), credit=st.sampled_from([None, 3]))
    def account(self, window: int, limit: int, credit: int | None) -> None:
        self.control.reset()
        self.window, self.limit, self.credit = window, limit, credit
        billing = {} if credit is None else {"billing": "per_transfer", "credits": credit}
        self.control.patch_account(
            requests_per_window=10**6,
            feed_interval_seconds=0,
            delivery_window_days=window,
            outstanding_transfer_limit=limit,
            **billing,
        )

    # ------------------------------------------------------------------------------------------------- what happens

    @rule(target=transfers, recipients=st.integers(1, 3))
    def create(self, recipients: int) -> Model:
        people = [{"email": f"{number}@example.com"} for number in range(recipients)]
        draft = self.api.draft(recipients=people)
        assert (draft["status"], draft["sent_at"], draft["files"]) == ("draft", None, [])
        self.all.append(Model(draft["id"], self.now, [False] * recipients))
        return self.all[-1]

    @rule(target=transfers, recipients=st.integers(1, 2))
    def deliver(self, recipients: int) -> Model:
        """The three steps in a row: by chance alone few drafts would get as far as this."""
        transfer = self.create(recipients)
        self.attach(transfer, "a.txt")
        self.send(transfer)
        return transfer

    @rule(transfer=transfers, name=st.sampled_from(["a.txt", "b.txt"]))
    def attach(self, transfer: Model, name: str) -> None:
        response = self.api.attach(transfer.id, name)
        if self.only_a_draft(transfer, response):
            assert response.status_code == (200 if name in transfer.files else 201)
            assert transfer.files.setdefault(name, response.json()["id"]) == response.json()["id"]

    @rule(transfer=transfers, name=st.sampled_from(["a.txt", "b.txt"]))
    def remove(self, transfer: Model, name: str) -> None:
        path = f"/v1/transfers/{transfer.id}/files/{transfer.files.get(name, 'none')}"
        response = self.api.http.delete(path)
        if name not in transfer.files:
            assert response.status_code in (404, 409)
        elif self.only_a_draft(transfer, response):
            assert response.status_code == 204
            del transfer.files[name]

    @rule(transfer=transfers)
    def discard(self, transfer: Model) -> None:
        response = self.api.http.delete(f"/v1/transfers/{transfer.id}")
        if self.only_a_draft(transfer, response):
            assert response.status_code == 204
            transfer.ended = "gone"

    @rule(transfer=transfers)
    def send(self, transfer: Model) -> None:
        reasons = self.reasons_against(transfer)
        response = self.api.send(transfer.id)
        if self.only_a_draft(transfer, response):
            if reasons:
                assert response.json().get("error") in reasons
                return
            assert (response.status_code, response.json()["status"]) == (200, "pending")
            transfer.sent, transfer.window = self.now, self.window
            self.credit = None if self.credit is None else self.credit - 1

    def reasons_against(self, transfer: Model) -> set[str]:
        reasons = {
            "invalid_state": not transfer.files,
            "transfer_limit_reached": self.outstanding() >= self.limit,
            "no_credit": self.credit == 0,
        }
        return {code for code, holds in reasons.items() if holds}

    @rule(transfer=transfers, recipient=st.integers(0, 2))
    def pick_up(self, transfer: Model, recipient: int) -> None:
        recipient %= len(transfer.collected)
        possible = transfer.status(self.now) in ("pending", "partial", "complete")
        if self.done(possible, lambda: self.control.pickup(transfer.id, f"{recipient}@example.com")):
            transfer.collected[recipient] = True
            self.downloads += len(transfer.files)

    @rule(transfer=transfers)
    def everybody_picks_up(self, transfer: Model) -> None:
        """By chance alone few transfers would get as far as complete."""
        for recipient in range(len(transfer.collected)):
            self.pick_up(transfer, recipient)

    @rule(transfer=transfers)
    def cancel(self, transfer: Model) -> None:
        possible = transfer.status(self.now) in ("pending", "partial")
        if self.done(possible, lambda: self.control.cancel(transfer.id)):
            transfer.ended = "canceled"

    @rule(days=st.sampled_from([0, 1, 5, 29, 30]))
    def wait(self, days: int) -> None:
        self.control.advance_clock((days + MINUTE) * 86_400)
        self.now += days + MINUTE

    @rule(days=st.integers(1, 40))
    def change_the_delivery_window(self, days: int) -> None:
        """For transfers that are sent later."""
        self.control.patch_account(delivery_window_days=days)
        self.window = days

    def only_a_draft(self, transfer: Model, response: httpx.Response) -> bool:
        """True for a draft; any other transfer must have refused the call."""
        status = transfer.status(self.now)
        if status == "gone":
            assert (response.status_code, response.json()["error"]) == (404, "not_found")
        elif status != "draft":
            assert (response.status_code, response.json()["error"]) == (409, "invalid_state")
        return status == "draft"

    @staticmethod
    def done(possible: bool, call: Any) -> bool:
        """Whether the call did its work, which must be just when it is possible."""
        try:
            call()
        except httpx.HTTPStatusError as error:
            assert not possible
            assert error.response.status_code in (404, 409)
            return False
        assert possible
        return True

    def outstanding(self) -> int:
        return sum(transfer.status(self.now) in ("pending", "partial") for transfer in self.all)

    # --------------------------------------------------------------------------------------------- what is seen of it

    @invariant()
    def every_transfer_is_as_the_model_has_it(self) -> None:
        for model in self.all:
            response = self.api.http.get(f"/v1/transfers/{model.id}")
            if model.status(self.now) == "gone":
                assert response.status_code == 404
                continue
            seen = response.json()
            assert seen["status"] == model.status(self.now)
            assert [bool(recipient["picked_up_at"]) for recipient in seen["recipients"]] == model.collected
            assert {file["name"]: file["id"] for file in seen["files"]} == model.files
            assert (seen["sent_at"] is None) == (model.sent is None)

    @invariant()
    def every_listing_has_just_its_transfers_newest_first(self) -> None:
        statuses = {model.id: model.status(self.now) for model in self.all if model.sent is not None}
        rows = self.api.page(limit=100)["data"]
        assert {row["id"]: row["status"] for row in rows} == statuses
        instants = [row["sent_at"] for row in rows]
        assert instants == sorted(instants, reverse=True)
        for status in LISTED:
            found = [row["id"] for row in rows if row["status"] == status]
            assert self.api.ids(status=status, limit=100) == found

    @invariant()
    def what_is_sent_is_billed_and_told_once(self) -> None:
        sent = {model.id: len(model.collected) for model in self.all if model.sent is not None}
        ledger = self.control.ledger()
        assert sorted(row["transfer_id"] for row in ledger if row["kind"] == "billed") == sorted(sent)
        emailed = [row["transfer_id"] for row in ledger if row["kind"] == "emailed"]
        assert {transfer_id: emailed.count(transfer_id) for transfer_id in sent} == sent
        assert len(emailed) == sum(sent.values())
        feed = self.api.events().text
        assert feed.count('"transfer_sent"') == len(sent)
        assert feed.count('"file_downloaded"') == self.downloads

    @invariant()
    def the_account_counts_what_is_outstanding(self) -> None:
        state = self.control.state()
        assert state["outstanding_transfers"] == self.outstanding()
        assert state["account"]["credits"] == self.credit or self.credit is None


def explore(api: Any, control: Sandbox, **more: Any) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    default = settings(max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(lambda: Service(api, control), settings=settings(default, **more))


def test_no_order_of_calls_leaves_the_transition_table(api: Any, control: Sandbox) -> None:
    explore(api, control)
