"""What recipients, administrators and time do to a sent transfer (service.md, States and transitions)."""

from __future__ import annotations

import msgspec

from outbound_transfer_sandbox.clock import SECOND
from outbound_transfer_sandbox.errors import invalid_state, not_found
from outbound_transfer_sandbox.models import File, Recipient, Transfer

from .context import Context
from .transfers import TransferService


class Delivery:
    def __init__(self, context: Context, transfers: TransferService) -> None:
        self._context = context
        self._transfers = transfers

    def pick_up(self, transfer_id: str, email: str) -> Transfer:
        """A recipient downloads every file. Raises 404 for an unknown recipient, 409 when nothing can be collected."""
        transfer = self._transfers.find(transfer_id)
        check_collectable(transfer)
        self.collect(transfer, _recipient(transfer, email), transfer.files)
        return self._transfers.find(transfer_id)

    def collect(self, transfer: Transfer, recipient: Recipient, files: list[File]) -> None:
        """The recipient has downloaded `files` of a transfer that can be collected: marks both, tells the feed."""
        now = self._context.clock.now()
        self._context.space.check_records(1 + len(files), sum(len(file.name.encode()) for file in files))
        with self._context.db.transaction():
            if recipient.picked_up_at is None:
                self._mark(transfer, recipient, now)
            self._record(transfer, recipient, files, now)

    def _mark(self, transfer: Transfer, recipient: Recipient, now: int) -> None:
        waiting = sum(other.picked_up_at is None for other in transfer.recipients) - 1
        self._context.transfers.set_picked_up(recipient.pk, now)
        self._context.transfers.set_status(transfer.pk, "partial" if waiting else "complete")

    def _record(self, transfer: Transfer, recipient: Recipient, files: list[File], now: int) -> None:
        for file in files:
            data = {
                "transfer_id": transfer.id,
                "recipient": recipient.email,
                "file_id": file.id,
                "file_name": file.name,
                "file_size": file.size,
            }
            self._context.journal.add_event("file_downloaded", now, msgspec.json.encode(data).decode())

    def cancel(self, transfer_id: str) -> Transfer:
        """Cancels in the web application. Raises 409 invalid_state unless pending or partial."""
        transfer = self._transfers.find(transfer_id)
        if transfer.status not in {"pending", "partial"}:
            raise invalid_state(f"Only a pending or partial transfer can be canceled; this one is {transfer.status}.")
        self._context.transfers.set_status(transfer.pk, "canceled")
        return self._transfers.find(transfer_id)

    def rewrite_status(self, transfer_id: str, stored_status: str) -> None:
        """Makes a sent transfer an old record with any stored status; raises 409 invalid_state for a draft."""
        transfer = self._transfers.find(transfer_id)
        if transfer.sent_at is None or stored_status == "draft":
            raise invalid_state("Only a sent transfer can have another stored status, and draft is none of them.")
        self._context.transfers.set_status(transfer.pk, stored_status)

    def rewrite_expiry(self, transfer_id: str, seconds: float) -> None:
        """Lets a transfer expire in so many seconds, rather than all transfers sooner by moving the clock."""
        transfer = self._transfers.find(transfer_id)
        self._context.transfers.set_expiry(transfer.pk, self._context.clock.now() + int(seconds * SECOND))


def check_collectable(transfer: Transfer) -> None:
    """Raises 409 invalid_state when nothing can be collected (any more)."""
    if transfer.status not in {"pending", "partial", "complete"}:
        raise invalid_state(f"Nothing can be collected: the transfer is {transfer.status}.")


def _recipient(transfer: Transfer, email: str) -> Recipient:
    """The recipient with this address; of several, the first that has not collected."""
    matching = [recipient for recipient in transfer.recipients if recipient.email == email]
    if not matching:
        raise not_found("recipient")
    return next((recipient for recipient in matching if recipient.picked_up_at is None), matching[0])
