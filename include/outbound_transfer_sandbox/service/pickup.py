"""Recipients collect: a link of their own, the six ways to authenticate, downloads (service.md, Authentication)."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.errors import ApiError, invalid_request, not_found
from outbound_transfer_sandbox.models import File, Recipient, Transfer

from . import passwords
from .attempts import Attempts
from .context import Context
from .delivery import Delivery, check_collectable
from .mailbox import Mailbox, link_digest
from .sessions import Sessions
from .transfers import TransferService

_CHANNELS = {"email_code": "email", "sms": "text"}
_REFUSALS = {
    "email": "This is not the address that the link was sent to.",
    "email_code": "This code is wrong or no longer good.",
    "sms": "This code is wrong or no longer good.",
    "question": "This is not the answer that the sender expects.",
    "login": "This is not the password of this guest.",
}


class Parcel(Struct, frozen=True):
    """What one link leads to: a transfer, for one of its recipients."""

    transfer: Transfer
    recipient: Recipient

    @property
    def subject(self) -> str:
        return f"recipient:{self.recipient.pk}"

    @property
    def guest(self) -> str:
        return self.recipient.email.casefold()


class Pickup:
    def __init__(
        self,
        context: Context,
        transfers: TransferService,
        delivery: Delivery,
        attempts: Attempts,
        sessions: Sessions,
        mailbox: Mailbox,
    ) -> None:
        self._context = context
        self._transfers = transfers
        self._delivery = delivery
        self._attempts = attempts
        self._sessions = sessions
        self._mailbox = mailbox
        self._checks: dict[str, Callable[[Parcel, str], bool]] = {
            "email": _is_address,
            "email_code": self._is_code,
            "sms": self._is_code,
            "question": self._is_answer,
            "login": self._is_password,
        }

    def open(self, token: str) -> Parcel:
        """Raises 404 for a link that never was; 409 invalid_state when nothing can be collected any more."""
        linked = self._context.mail.linked(link_digest(token))
        if linked is None:
            raise not_found("link")
        transfer_id, recipient = linked
        transfer = self._transfers.find(transfer_id)
        check_collectable(transfer)
        return Parcel(transfer, next(other for other in transfer.recipients if other.pk == recipient))

    def is_admitted(self, parcel: Parcel, session: str) -> bool:
        """Whether this browser may download: the link suffices, or its session is this recipient's."""
        return parcel.transfer.security == "none" or self._sessions.subject(session) == parcel.subject

    def question(self, parcel: Parcel) -> str | None:
        return self._context.transfers.question(parcel.transfer.pk)[0]

    def is_registered(self, parcel: Parcel) -> bool:
        return self._context.people.guest_password(parcel.guest) is not None

    def awaits_code(self, parcel: Parcel) -> bool:
        return self._context.mail.code(parcel.recipient.pk, self._context.clock.now()) is not None

    def send_code(self, parcel: Parcel) -> None:
        """A new code, which replaces the one before. Raises 400 where the option has none, 429 too_many_attempts."""
        channel = _CHANNELS.get(parcel.transfer.security)
        if channel is None:
            raise invalid_request("This transfer needs no code.")
        self._attempts.count(f"codes:{parcel.recipient.pk}", unspecified.CODES_SENT)
        self._context.space.check_records(2)
        code = f"{secrets.randbelow(10**unspecified.CODE_DIGITS):0{unspecified.CODE_DIGITS}}"
        expires_at = self._context.clock.now() + unspecified.CODE_LIFETIME
        self._context.mail.save_code(parcel.recipient.pk, self._code_hash(parcel, code), expires_at)
        self._mailbox.send_code(parcel.transfer, parcel.recipient, code, channel)

    def register(self, parcel: Parcel, password: str) -> None:
        """Makes the recipient a guest. Raises 400 for a short password or another option, 409 when there is one."""
        if parcel.transfer.security != "login":
            raise invalid_request("This transfer needs no guest.")
        if not unspecified.MIN_PASSWORD <= len(password) <= 1000:
            raise invalid_request(f"A password has at least {unspecified.MIN_PASSWORD} characters.")
        if self.is_registered(parcel):
            raise ApiError(409, "invalid_state", "This address is registered already: sign in.")
        self._context.space.check_records(1)
        now = self._context.clock.now()
        self._context.people.add_guest(parcel.guest, passwords.hashed(password), now)

    def admit(self, parcel: Parcel, answer: str) -> str:
        """A session's token for the right answer. Raises 403 wrong_answer, 429 too_many_attempts, 400 for no option."""
        security = parcel.transfer.security
        check = self._checks.get(security)
        if check is None:
            raise invalid_request("This transfer asks for nothing.")
        subject = f"guest:{parcel.guest}" if security == "login" else parcel.subject
        self._attempts.judge(subject, lambda: check(parcel, answer), _REFUSALS[security])
        self._context.mail.remove_code(parcel.recipient.pk)
        return self._sessions.begin(parcel.subject)

    def file(self, parcel: Parcel, session: str, file_id: str) -> File:
        """Raises 403 not_admitted before the recipient has authenticated, 404 for a file of anything else."""
        if not self.is_admitted(parcel, session):
            raise ApiError(403, "not_admitted", "Open the link from your message first.")
        for file in parcel.transfer.files:
            if file.id == file_id:
                return file
        raise not_found("file")

    def content(self, file: File) -> Path:
        """Where its bytes are."""
        return self._context.blobs.path(file.id)

    def downloaded(self, token: str, file: File) -> None:
        """The last byte is about to go out. Raises 409 when the transfer ended meanwhile, 503 when the disk is full."""
        parcel = self.open(token)
        self._delivery.collect(parcel.transfer, parcel.recipient, [file])

    def _code_hash(self, parcel: Parcel, code: str) -> str:
        return self._context.derived(f"code {parcel.recipient.pk} {code}")

    def _is_code(self, parcel: Parcel, answer: str) -> bool:
        kept = self._context.mail.code(parcel.recipient.pk, self._context.clock.now())
        return hmac.compare_digest(self._code_hash(parcel, "".join(answer.split())), kept or "")

    def _is_answer(self, parcel: Parcel, answer: str) -> bool:
        return passwords.matches(passwords.normalized(answer), self._context.transfers.question(parcel.transfer.pk)[1])

    def _is_password(self, parcel: Parcel, answer: str) -> bool:
        return passwords.matches(answer, self._context.people.guest_password(parcel.guest))


def _is_address(parcel: Parcel, answer: str) -> bool:
    return hmac.compare_digest(answer.strip().casefold().encode(), parcel.guest.encode())
