"""Pickup by recipients: their links, the ways to authenticate, downloads (service-api.md, R10)."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import SECOND
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_request, not_found
from outbound_transfer_sandbox.domain.models import File, Recipient, Transfer

from . import passwords
from .context import Context
from .lifecycle import TransferLifecycle, require_open_for_pickup
from .login_throttle import LoginThrottle
from .mailbox import MailboxService, link_digest
from .sessions import SessionService
from .transfers import TransferService

_CHANNELS = {"email_code": "email", "sms": "text"}
_REFUSALS = {
    "email": "This is not the address that the link was sent to.",
    "email_code": "This code is wrong or has expired.",
    "sms": "This code is wrong or has expired.",
    "question": "This is not the answer that the sender set.",
    "login": "The password is wrong.",
}


class PickupLink(Struct, frozen=True):
    """The transfer and the recipient that a pickup link belongs to."""

    transfer: Transfer
    recipient: Recipient

    @property
    def subject(self) -> str:
        return f"recipient:{self.recipient.pk}"

    @property
    def guest(self) -> str:
        return self.recipient.email.lower()  # casefold() would make strauß@ and strauss@ one guest


class PickupService:
    """Authenticates recipients and gives them the files."""

    def __init__(
        self,
        context: Context,
        transfers: TransferService,
        lifecycle: TransferLifecycle,
        throttle: LoginThrottle,
        sessions: SessionService,
        mailbox: MailboxService,
    ) -> None:
        self._context = context
        self._transfers = transfers
        self._lifecycle = lifecycle
        self._throttle = throttle
        self._sessions = sessions
        self._mailbox = mailbox
        self._checks: dict[str, Callable[[PickupLink, str], bool]] = {
            "email": _is_address,
            "email_code": self._is_code,
            "sms": self._is_code,
            "question": self._is_security_answer,
            "login": self._is_password,
        }

    def resolve_link(self, token: str) -> PickupLink:
        """Return what a link's token stands for. Raises 404 if it is unknown, 409 if the transfer has ended."""
        linked = self._context.mail.linked(link_digest(token))
        if linked is None:
            raise not_found("link")
        transfer_id, recipient = linked
        transfer = self._transfers.find(transfer_id)
        require_open_for_pickup(transfer)
        return PickupLink(transfer, next(other for other in transfer.recipients if other.pk == recipient))

    def is_authenticated(self, link: PickupLink, session: str) -> bool:
        """Return whether this browser may download: without security, or in the recipient's session."""
        return link.transfer.security == "none" or self._sessions.find_subject(session) == link.subject

    def question(self, link: PickupLink) -> str | None:
        return self._context.transfers.question(link.transfer.pk)[0]

    def is_registered(self, link: PickupLink) -> bool:
        return self._context.users.guest_password(link.guest) is not None

    def has_pending_code(self, link: PickupLink) -> bool:
        return self._context.mail.code(link.recipient.pk, self._context.clock.now()) is not None

    def send_code(self, link: PickupLink) -> None:
        """Send a new code, which replaces the previous one. Raises 400 if none is needed, 429 too_many_attempts."""
        channel = _CHANNELS.get(link.transfer.security)
        if channel is None:
            raise invalid_request("This transfer does not use codes.")
        self._throttle.count_attempt(f"codes:{link.recipient.pk}", defaults.MAX_CODES_SENT)
        code = f"{secrets.randbelow(10**defaults.CODE_DIGITS):0{defaults.CODE_DIGITS}}"
        expires_at = self._context.clock.now() + defaults.CODE_LIFETIME_SECONDS * SECOND
        self._context.mail.save_code(link.recipient.pk, self._code_hash(link, code), expires_at)
        self._mailbox.send_code(link.transfer, link.recipient, code, channel)

    def register(self, link: PickupLink, password: str) -> None:
        """Register the recipient as a guest. Raises 400 for a short password or another option, 409 if registered."""
        if link.transfer.security != "login":
            raise invalid_request("This transfer does not ask guests to register.")
        if not defaults.MIN_PASSWORD_LENGTH <= len(password) <= 1000:
            raise invalid_request(f"A password needs at least {defaults.MIN_PASSWORD_LENGTH} characters.")
        if self.is_registered(link):
            raise ApiError(409, "invalid_state", "This address is already registered. Sign in instead.")
        now = self._context.clock.now()
        self._context.users.add_guest(link.guest, passwords.hash_secret(password), now)

    def authenticate(self, link: PickupLink, reply: str) -> str:
        """Return a session token for the right answer. Raises 403 wrong_answer, 429, or 400 without security."""
        security = link.transfer.security
        check = self._checks.get(security)
        if check is None:
            raise invalid_request("This transfer does not ask for authentication.")
        subject = f"guest:{link.guest}" if security == "login" else link.subject
        self._throttle.verify(subject, lambda: check(link, reply), _REFUSALS[security])
        self._context.mail.remove_code(link.recipient.pk)
        return self._sessions.start(link.subject)

    def file(self, link: PickupLink, session: str, file_id: str) -> File:
        """Return a file of the transfer. Raises 403 not_authenticated, or 404 for a file of another transfer."""
        if not self.is_authenticated(link, session):
            raise ApiError(403, "not_authenticated", "Open the link from your message first.")
        for file in link.transfer.files:
            if file.id == file_id:
                return file
        raise not_found("file")

    def file_path(self, file: File) -> Path:
        """Return the path of the file's bytes."""
        return self._context.blobs.path(file.id)

    def record_download(self, token: str, file: File) -> None:
        """Record a complete download. Raises 409 if the transfer has ended meanwhile, 503 if the disk is full."""
        link = self.resolve_link(token)
        self._lifecycle.record_pickup(link.transfer, link.recipient, [file])

    def _code_hash(self, link: PickupLink, code: str) -> str:
        return self._context.derive_secret(f"code {link.recipient.pk} {code}")

    def _is_code(self, link: PickupLink, reply: str) -> bool:
        stored_hash = self._context.mail.code(link.recipient.pk, self._context.clock.now())
        return hmac.compare_digest(self._code_hash(link, "".join(reply.split())), stored_hash or "")

    def _is_security_answer(self, link: PickupLink, reply: str) -> bool:
        return passwords.verify_secret(
            passwords.normalize_answer(reply), self._context.transfers.question(link.transfer.pk)[1]
        )

    def _is_password(self, link: PickupLink, reply: str) -> bool:
        return passwords.verify_secret(reply, self._context.users.guest_password(link.guest))


def _is_address(link: PickupLink, reply: str) -> bool:
    return hmac.compare_digest(reply.strip().lower().encode(), link.guest.encode())
