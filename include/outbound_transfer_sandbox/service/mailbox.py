"""The emails and texts that the service would send, kept where they can be read (service.md, POST .../send, rule 5)."""

from __future__ import annotations

import hashlib
import secrets

from msgspec import Struct

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.clock import when
from outbound_transfer_sandbox.models import Mail, Recipient, Transfer

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
    """A piece of mail as its reader sees it; `link` is a path. `code` stands in the text, `link` does not."""

    pk: int
    channel: str
    address: str
    subject: str
    text: str
    link: str | None
    code: str | None
    transfer_id: str
    at: int


class Mailbox:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.mail

    def announce(self, transfer: Transfer, now: int) -> None:
        """Emails each recipient a link of their own."""
        tokens = [(secrets.token_urlsafe(24), recipient) for recipient in transfer.recipients]
        self._store.add_links([(link_digest(token), recipient.pk) for token, recipient in tokens])
        self._store.add([("pickup", "email", transfer.user, r.email, r.pk, token, now) for token, r in tokens])

    def send_code(self, transfer: Transfer, recipient: Recipient, code: str, channel: str) -> None:
        address = recipient.email if channel == "email" else recipient.phone or ""
        now = self._context.clock.now()
        self._store.add([("code", channel, transfer.user, address, recipient.pk, code, now)])

    def page(self, user: str | None, address: str | None, before: int) -> tuple[list[Message], int | None]:
        """Mail about one user's transfers (None: all), to one address (None: any), newest first; where to go on."""
        rows = self._store.page(user, address, before, unspecified.PAGE_ROWS + 1)
        page = rows[: unspecified.PAGE_ROWS]
        return [written(mail) for mail in page], page[-1].pk if len(rows) > len(page) else None

    def all(self, address: str | None) -> list[Message]:
        """All mail, oldest first."""
        rows = self._store.page(None, address, unspecified.FOREVER, unspecified.SHOWN_MAIL)
        return [written(mail) for mail in reversed(rows)]

    def get(self, pk: int, user: str | None) -> Message | None:
        mail = self._store.get(pk, user)
        return written(mail) if mail else None


def link_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def written(mail: Mail) -> Message:
    """The words of a piece of mail. It names its one recipient only: they are masked from one another."""
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
        at=mail.at,
    )


def _pickup_text(mail: Mail) -> str:
    files = "a file" if mail.files == 1 else f"{mail.files} files"
    parts = [
        f"Hello {mail.recipient_name},",
        f"{mail.sender} has sent you {files}: {mail.subject}",
        *([mail.message] if mail.message else []),
        f"Collect until {when(mail.expires_at)}. {_AUTHENTICATION[mail.security]}",
    ]
    return "\n\n".join(parts)


def _code_text(mail: Mail) -> str:
    minutes = unspecified.CODE_LIFETIME // 60_000_000
    return f"{mail.secret} is your code to collect the files from {mail.sender}. It is good for {minutes} minutes."
