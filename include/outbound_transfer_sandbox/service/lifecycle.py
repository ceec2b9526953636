"""Changes to sent transfers by recipients, senders and tests (service-api.md, R17 to R21)."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from outbound_transfer_sandbox.domain.clock import SECOND
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_state, not_found
from outbound_transfer_sandbox.domain.models import File, Recipient, Transfer

from .context import Context
from .transfers import TransferService


class TransferLifecycle:
    """Picks up, cancels and, for tests, overrides sent transfers."""

    def __init__(self, context: Context, transfers: TransferService) -> None:
        self._context = context
        self._transfers = transfers

    def pick_up(self, transfer_id: str, email: str) -> Transfer:
        """Let a recipient download every file. Raises 404 for an unknown recipient, 409 if the transfer is not open."""
        transfer = self._transfers.find(transfer_id)
        require_open_for_pickup(transfer)
        self.record_pickup(transfer, _recipient(transfer, email), transfer.files)
        return self._transfers.find(transfer_id)

    def record_pickup(self, transfer: Transfer, recipient: Recipient, files: list[File]) -> None:
        """Record that a recipient downloaded `files`: update recipient and status, and add the feed's events."""
        now = self._context.clock.now()
        with self._context.db.transaction():
            if recipient.picked_up_at is None:
                self._mark_picked_up(transfer, recipient, now)
            self._record_downloads(transfer, recipient, files, now)

    def pick_up_due(self) -> None:
        """Let everybody pick up what was sent `auto_pickup_seconds` ago."""
        seconds = self._context.account.auto_pickup_seconds
        if seconds is None:
            return
        now = self._context.clock.now()
        for transfer in self._context.transfers.outstanding_since(now - int(seconds * SECOND), now):
            for recipient in transfer.recipients:
                if recipient.picked_up_at is None:
                    with suppress(ApiError):
                        self.pick_up(transfer.id, recipient.email)

    def _mark_picked_up(self, transfer: Transfer, recipient: Recipient, now: int) -> None:
        outstanding = sum(other.picked_up_at is None for other in transfer.recipients) - 1
        self._context.transfers.set_picked_up(recipient.pk, now)
        self._context.transfers.set_status(transfer.pk, "partial" if outstanding else "complete")

    def _record_downloads(self, transfer: Transfer, recipient: Recipient, files: list[File], now: int) -> None:
        for file in files:
            data = {
                "transfer_id": transfer.id,
                "recipient": recipient.email,
                "file_id": file.id,
                "file_name": file.name,
                "file_size": file.size,
            }
            self._context.activity.add_event("file_downloaded", now, msgspec.json.encode(data).decode())

    def cancel(self, transfer_id: str) -> Transfer:
        """Cancel a transfer, as in the web application. Raises 409 invalid_state unless it is pending or partial."""
        transfer = self._transfers.find(transfer_id)
        if transfer.status not in {"pending", "partial"}:
            raise invalid_state(f"Only a pending or partial transfer can be canceled; this one is {transfer.status}.")
        self._context.transfers.set_status(transfer.pk, "canceled")
        return self._transfers.find(transfer_id)

    def override_status(self, transfer_id: str, stored_status: str) -> None:
        """Store any status for a sent transfer, as old records have it. Raises 409 invalid_state for a draft."""
        transfer = self._transfers.find(transfer_id)
        if transfer.sent_at is None or stored_status == "draft":
            raise invalid_state("Only a sent transfer can get another stored status, and that status cannot be draft.")
        self._context.transfers.set_status(transfer.pk, stored_status)

    def override_expiry(self, transfer_id: str, seconds: float) -> None:
        """Let one transfer expire in `seconds`. Advancing the clock would affect all transfers."""
        transfer = self._transfers.find(transfer_id)
        self._context.transfers.set_expiry(transfer.pk, self._context.clock.now() + int(seconds * SECOND))


def require_open_for_pickup(transfer: Transfer) -> None:
    """Raise 409 invalid_state if recipients cannot pick up the transfer (any longer)."""
    if transfer.status not in {"pending", "partial", "complete"}:
        raise invalid_state(f"The transfer cannot be picked up: it is {transfer.status}.")


def _recipient(transfer: Transfer, email: str) -> Recipient:
    """Return the recipient with this address. Of several, it is the first one who has not picked up."""
    matching = [recipient for recipient in transfer.recipients if recipient.email == email]
    if not matching:
        raise not_found("recipient")
    return next((recipient for recipient in matching if recipient.picked_up_at is None), matching[0])
