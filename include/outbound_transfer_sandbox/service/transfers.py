"""Drafts, listing and sending (service-api.md, R22 to R29 and R35 to R39)."""

from __future__ import annotations

import base64
import binascii
import struct
from contextlib import suppress

import msgspec

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import DAY
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_request, invalid_state, not_found
from outbound_transfer_sandbox.domain.models import Caller, Transfer

from . import validation
from .concurrent_sends import SendWindow
from .context import Context, new_id
from .mailbox import MailboxService

STATUS_FILTERS = ("all", "pending", "partial", "complete", "canceled", "expired")


class ListCursor(msgspec.Struct, frozen=True):
    """A position in the list of sent transfers.

    Next come the transfers sent between `after` and `before`, then those sent after `newest`. The values are times of
    sending, which are unique.
    """

    after: int
    before: int
    newest: int

    def encode(self) -> str:
        return base64.urlsafe_b64encode(struct.pack(">3q", self.after, self.before, self.newest)).decode()


def decode_cursor(cursor: str) -> ListCursor:
    with suppress(binascii.Error, struct.error, ValueError):
        position = ListCursor(*struct.unpack(">3q", base64.urlsafe_b64decode(cursor)))
        if position.encode() == cursor:
            return position
    raise invalid_request("cursor is not the next_cursor of a previous page.")


class TransferService:
    """Creates, lists, discards and sends transfers."""

    def __init__(self, context: Context, mailbox: MailboxService) -> None:
        self._context = context
        self._store = context.transfers
        self._mailbox = mailbox

    def create(self, caller: Caller, body: validation.NewTransfer) -> Transfer:
        """Create a draft. Raises what `validation.validate_draft` raises."""
        draft, now = validation.validate_draft(body, self._context.account), self._context.clock.now()
        transfer_id = new_id("tr")
        self._store.add(transfer_id, caller.user, draft, now, now + defaults.DRAFT_LIFETIME_DAYS * DAY)
        return self.retrieve(caller, transfer_id)

    def retrieve(self, caller: Caller, transfer_id: str, *, with_files: bool = True) -> Transfer:
        """Return the caller's transfer, draft or sent. Raises 404 not_found for any other and for an expired draft."""
        transfer = self.find(transfer_id, with_files=with_files)
        if transfer.user != caller.user:
            raise not_found("transfer")
        return transfer

    def find(self, transfer_id: str, *, with_files: bool = True) -> Transfer:
        """Return any user's transfer, for recipients and administrators. Raises 404 not_found."""
        now = self._context.clock.now()
        transfer = self._store.get(transfer_id, now, with_files=with_files)
        if transfer is None or (transfer.status == "draft" and transfer.expires_at < now):
            raise not_found("transfer")
        return transfer

    def require_draft(self, caller: Caller, transfer_id: str, *, with_files: bool = True) -> Transfer:
        """Return the caller's draft. Raises 404 not_found, or 409 invalid_state if it was sent (R20, R21)."""
        transfer = self.retrieve(caller, transfer_id, with_files=with_files)
        if transfer.status != "draft":
            raise invalid_state(f"The transfer is no longer a draft: it is {transfer.status}.")
        return transfer

    def discard(self, caller: Caller, transfer_id: str) -> None:
        self._remove(self.require_draft(caller, transfer_id))

    def remove_abandoned(self) -> None:
        """Remove expired drafts and their files."""
        for transfer in self._store.abandoned(self._context.clock.now()):
            self._remove(transfer)

    def _remove(self, transfer: Transfer) -> None:
        self._store.remove(transfer.pk)
        self._context.blobs.remove(file.id for file in transfer.files)

    def page(self, caller: Caller, status: str, cursor: str | None, limit: int) -> tuple[list[Transfer], str | None]:
        """Return a page of the caller's sent transfers, newest first, and the next cursor (R26 to R28)."""
        if status not in STATUS_FILTERS:
            raise invalid_request(f"status must be one of {', '.join(STATUS_FILTERS)}.")
        now = self._context.clock.now()
        position = decode_cursor(cursor) if cursor is not None else self._restart_after(0)
        page = self._store.page(caller.user, status, position.after, position.before, limit + 1, now)
        next_cursor: ListCursor | None = None
        if len(page) > limit:
            page = page[:limit]
            next_cursor = ListCursor(position.after, page[-1].sent_at or 0, position.newest)
        elif self._store.page(caller.user, status, position.newest, defaults.MAX_TIMESTAMP, 1, now):
            next_cursor = self._restart_after(position.newest)
        return page, next_cursor.encode() if next_cursor else None

    def _restart_after(self, after: int) -> ListCursor:
        """Return the position before all transfers that were sent between `after` and now."""
        newest = self._store.last_sent_at()
        return ListCursor(after, newest + 1, newest)

    def send(self, caller: Caller, transfer_id: str, window: SendWindow) -> Transfer:
        """Send the draft once: bill it, email each recipient, start the delivery window.

        Raises 404, 409 invalid_state, recipient_limit_exceeded or transfer_limit_reached, 403 no_credit, in
        this order (R36 to R38).
        """
        transfer = self.retrieve(caller, transfer_id)
        if transfer.status != "draft" and window.is_sent_concurrently:
            return transfer
        transfer = self.require_draft(caller, transfer_id)
        self._check_sendable(transfer)
        # Times of sending are unique, because the list's cursor depends on it.
        now = max(self._context.clock.now(), self._store.last_sent_at() + 1)
        with self._context.db.transaction():
            self._charge()
            self._store.set_sent(transfer.pk, now, now + self._context.account.delivery_window_days * DAY)
            self._record_send(transfer, now)
        window.sent = True
        return self.retrieve(caller, transfer_id)

    def _check_sendable(self, transfer: Transfer) -> None:
        account = self._context.account
        if not transfer.files:
            raise invalid_state("The draft has no files.")
        if len(transfer.recipients) > account.recipient_limit:
            message = f"The transfer has {len(transfer.recipients)} recipients; the limit is {account.recipient_limit}."
            raise ApiError(409, "recipient_limit_exceeded", message)
        if self.outstanding() >= account.outstanding_transfer_limit:
            message = f"The limit of {account.outstanding_transfer_limit} outstanding transfers is reached."
            raise ApiError(409, "transfer_limit_reached", message)
        if account.billing == "per_transfer" and account.credits == 0:
            raise ApiError(403, "no_credit", "No credit is left.")

    def outstanding(self) -> int:
        """Return how many transfers are outstanding, scheduled sends included (service-api.md, R57)."""
        return self._store.outstanding(self._context.clock.now()) + self._context.account.scheduled_sends

    def _charge(self) -> None:
        account = self._context.account
        if account.billing == "per_transfer":
            self._context.change_account(msgspec.structs.replace(account, credits=account.credits - 1))

    def _record_send(self, transfer: Transfer, now: int) -> None:
        activity, addresses = self._context.activity, [recipient.email for recipient in transfer.recipients]
        activity.bill(transfer.id, now)
        activity.email(transfer.id, addresses, now)
        self._mailbox.send_pickup_mails(transfer, now)
        data = {
            "transfer_id": transfer.id,
            "sender": transfer.user,
            "subject": transfer.subject,
            "recipients": addresses,
            "files": len(transfer.files),
        }
        activity.add_event("transfer_sent", now, msgspec.json.encode(data).decode())
