"""The emails and text messages that the service would send (service-api.md, R39). The sandbox stores them instead."""

from __future__ import annotations

import hashlib
import secrets

from msgspec import Struct

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import format_for_people
from outbound_transfer_sandbox.domain.models import Mail, Recipient, Transfer

from .context import Context

_AUTHENTICATION = {
    "none": "The link is all you need.",
    "email": "You will be asked to confirm your email address.",
    "email_code": "You will be asked for a code that we send to this address.",
    "question": "You will be asked a question that the sender chose.",
    "sms": "You will be asked for a code that we send to your phone.",
    "login": "You will be asked to sign in, or to register as a guest first.",
}


class Message(Struct, frozen=True, kw_only=True):
    """A message as its reader sees it. `link` is a path; `text` contains `code` but not `link`."""

    pk: int
    channel: str
    address: str
    subject: str
    text: str
    link: str | None
    code: str | None
    transfer_id: str
    timestamp: int


class MailboxService:
    """Writes messages to recipients, and reads them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.mail

    def send_pickup_mails(self, transfer: Transfer, now: int) -> None:
        """Email each recipient their own link."""
        tokens = [(secrets.token_urlsafe(24), recipient) for recipient in transfer.recipients]
        self._store.add_links([(link_digest(token), recipient.pk) for token, recipient in tokens])
        self._store.add([("pickup", "email", transfer.user, r.email, r.pk, token, now) for token, r in tokens])

    def send_code(self, transfer: Transfer, recipient: Recipient, code: str, channel: str) -> None:
        address = recipient.email if channel == "email" else recipient.phone or ""
        now = self._context.clock.now()
        self._store.add([("code", channel, transfer.user, address, recipient.pk, code, now)])

    def page(self, user: str | None, address: str | None, before: int) -> tuple[list[Message], int | None]:
        """Return a page of messages, newest first, and where the next page starts. None means any user or address."""
        rows = self._store.page(user, address, before, defaults.ROWS_PER_PAGE + 1)
        page = rows[: defaults.ROWS_PER_PAGE]
        return [render_mail(mail) for mail in page], page[-1].pk if len(rows) > len(page) else None

    def all(self, address: str | None) -> list[Message]:
        """Return all messages, oldest first."""
        rows = self._store.page(None, address, defaults.MAX_TIMESTAMP, defaults.MAX_MAIL_LISTED)
        return [render_mail(mail) for mail in reversed(rows)]

    def get(self, pk: int, user: str | None) -> Message | None:
        mail = self._store.get(pk, user)
        return render_mail(mail) if mail else None


def link_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def render_mail(mail: Mail) -> Message:
    """Render a message. It names its own recipient only: recipients are hidden from one another."""
    code = mail.secret if mail.kind == "code" else None
    return Message(
        pk=mail.pk,
        channel=mail.channel,
        address=mail.address,
        subject="Your code" if code else f"{mail.sender} sent you: {mail.subject}",
        text=_code_text(mail) if code else _pickup_text(mail),
        link=None if code else f"/pickup/{mail.secret}",
        code=code,
        transfer_id=mail.transfer_id,
        timestamp=mail.timestamp,
    )


def _pickup_text(mail: Mail) -> str:
    files = "a file" if mail.files == 1 else f"{mail.files} files"
    parts = [
        f"Hello {mail.recipient_name},",
        f"{mail.sender} has sent you {files}: {mail.subject}",
        *([mail.message] if mail.message else []),
        f"Download until {format_for_people(mail.expires_at)}. {_AUTHENTICATION[mail.security]}",
    ]
    return "\n\n".join(parts)


def _code_text(mail: Mail) -> str:
    minutes = defaults.CODE_LIFETIME_SECONDS // 60
    return f"{mail.secret} is your code for the files from {mail.sender}. It is valid for {minutes} minutes."
