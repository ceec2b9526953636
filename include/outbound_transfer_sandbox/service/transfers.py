"""Drafts, listing and sending (service.md, States and transitions, Endpoints)."""

from __future__ import annotations

import base64
import binascii
import struct
from contextlib import suppress

import msgspec

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.clock import DAY
from outbound_transfer_sandbox.errors import ApiError, invalid_request, invalid_state, not_found
from outbound_transfer_sandbox.models import Caller, Transfer

from . import drafts
from .context import Context, new_id
from .mailbox import Mailbox
from .overlap import Span

STATUSES = ("all", "pending", "partial", "complete", "canceled", "expired")


class Position(msgspec.Struct, frozen=True):
    """Where a listing stands: next come the transfers sent between `after` and `before`, then those after `newest`.

    Instants of sending are unique, so that one of them marks a place.
    """

    after: int
    before: int
    newest: int

    def encode(self) -> str:
        return base64.urlsafe_b64encode(struct.pack(">3q", self.after, self.before, self.newest)).decode()


def decode_position(cursor: str) -> Position:
    with suppress(binascii.Error, struct.error, ValueError):
        position = Position(*struct.unpack(">3q", base64.urlsafe_b64decode(cursor)))
        if position.encode() == cursor:
            return position
    raise invalid_request("cursor is not the next_cursor of an earlier page.")


class TransferService:
    def __init__(self, context: Context, mailbox: Mailbox) -> None:
        self._context = context
        self._store = context.transfers
        self._mailbox = mailbox

    def create(self, caller: Caller, body: drafts.NewTransfer) -> Transfer:
        """A new draft. Raises what `drafts.check` raises; 503 when the disk space is used up."""
        draft, now = drafts.check(body, self._context.account), self._context.clock.now()
        self._context.space.check_records(1 + len(draft.recipients), len(msgspec.json.encode(body)))
        transfer_id = new_id("tr")
        self._store.add(transfer_id, caller.user, draft, now, now + unspecified.DRAFT_LIFETIME)
        return self.retrieve(caller, transfer_id)

    def retrieve(self, caller: Caller, transfer_id: str, *, with_files: bool = True) -> Transfer:
        """The caller's own transfer, draft or sent. Raises 404 not_found for any other and for a draft that is gone."""
        transfer = self.find(transfer_id, with_files=with_files)
        if transfer.user != caller.user:
            raise not_found("transfer")
        return transfer

    def find(self, transfer_id: str, *, with_files: bool = True) -> Transfer:
        """Anybody's transfer, for recipients and administrators."""
        now = self._context.clock.now()
        transfer = self._store.get(transfer_id, now, with_files=with_files)
        if transfer is None or (transfer.status == "draft" and transfer.expires_at < now):
            raise not_found("transfer")
        return transfer

    def draft(self, caller: Caller, transfer_id: str, *, with_files: bool = True) -> Transfer:
        """The caller's draft. Raises 404 not_found; 409 invalid_state when it has been sent (States, rules 1 to 3)."""
        transfer = self.retrieve(caller, transfer_id, with_files=with_files)
        if transfer.status != "draft":
            raise invalid_state(f"The transfer is no longer a draft: it is {transfer.status}.")
        return transfer

    def discard(self, caller: Caller, transfer_id: str) -> None:
        self._remove(self.draft(caller, transfer_id))

    def remove_abandoned(self) -> None:
        """Frees what drafts past their lifetime hold."""
        for transfer in self._store.abandoned(self._context.clock.now()):
            self._remove(transfer)

    def _remove(self, transfer: Transfer) -> None:
        self._store.remove(transfer.pk)
        self._context.blobs.remove(file.id for file in transfer.files)

    def page(self, caller: Caller, status: str, cursor: str | None, limit: int) -> tuple[list[Transfer], str | None]:
        """A page of the caller's sent transfers, newest first, and the next cursor (service.md, GET /v1/transfers)."""
        if status not in STATUSES:
            raise invalid_request(f"status must be one of {', '.join(STATUSES)}.")
        now = self._context.clock.now()
        place = decode_position(cursor) if cursor is not None else self._round(0)
        page = self._store.page(caller.user, status, place.after, place.before, limit + 1, now)
        following: Position | None = None
        if len(page) > limit:
            page = page[:limit]
            following = Position(place.after, page[-1].sent_at or 0, place.newest)
        elif self._store.page(caller.user, status, place.newest, unspecified.FOREVER, 1, now):
            following = self._round(place.newest)
        return page, following.encode() if following else None

    def _round(self, after: int) -> Position:
        """The place before all that has been sent between `after` and now."""
        newest = self._store.last_sent_at()
        return Position(after, newest + 1, newest)

    def send(self, caller: Caller, transfer_id: str, span: Span) -> Transfer:
        """Sends the draft once: bills it, emails each recipient, starts the delivery window.

        Raises 404, 409 invalid_state, recipient_limit_exceeded or transfer_limit_reached, 403 no_credit, 503
        service_unavailable when the disk space is used up, in this order (service.md, POST .../send, rules 1 to 4).
        """
        transfer = self.retrieve(caller, transfer_id)
        if transfer.status != "draft" and span.sent_meanwhile:
            return transfer
        transfer = self.draft(caller, transfer_id)
        self._check_sendable(transfer)
        texts = len(msgspec.json.encode(transfer.subject))
        self._context.space.check_records(3 + 4 * len(transfer.recipients), texts)
        # The next free instant: instants of sending are unique, and listing relies on it.
        now = max(self._context.clock.now(), self._store.last_sent_at() + 1)
        with self._context.db.transaction():
            self._charge()
            self._store.set_sent(transfer.pk, now, now + self._context.account.delivery_window_days * DAY)
            self._record_send(transfer, now)
        span.sent = True
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
        """Sent and not yet collected, canceled or expired, plus scheduled sends (service.md, Limits)."""
        return self._store.outstanding(self._context.clock.now()) + self._context.account.scheduled_sends

    def _charge(self) -> None:
        account = self._context.account
        if account.billing == "per_transfer":
            self._context.change_account(msgspec.structs.replace(account, credits=account.credits - 1))

    def _record_send(self, transfer: Transfer, now: int) -> None:
        journal, addresses = self._context.journal, [recipient.email for recipient in transfer.recipients]
        journal.bill(transfer.id, now)
        journal.email(transfer.id, addresses, now)
        self._mailbox.announce(transfer, now)
        data = {
            "transfer_id": transfer.id,
            "sender": transfer.user,
            "subject": transfer.subject,
            "recipients": addresses,
            "files": len(transfer.files),
        }
        journal.add_event("transfer_sent", now, msgspec.json.encode(data).decode())
