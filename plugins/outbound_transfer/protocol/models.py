"""The service's resources (service.md, Resources and their fields) and what a delivery asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.identity import duplicate_addresses
from outbound_transfer.protocol.recipients import begins_like_a_list, read_text, shown

DRAFT: Final = "draft"
PENDING: Final = "pending"
PARTIAL: Final = "partial"
COMPLETE: Final = "complete"
CANCELED: Final = "canceled"
EXPIRED: Final = "expired"

#: Values of the listing's status filter (service.md, GET /v1/transfers).
FILTERS: Final = ("all", PENDING, PARTIAL, COMPLETE, CANCELED, EXPIRED)

MAX_RECIPIENTS: Final = 250
MAX_MESSAGE: Final = 2_000


class Recipient(msgspec.Struct, frozen=True):
    """One recipient of a transfer. ``picked_up_at`` is ISO 8601, None until that recipient downloads."""

    email: str
    name: str | None = None
    picked_up_at: str | None = None


class File(msgspec.Struct, frozen=True):
    """One attached file. ``size`` in bytes; ``name`` identifies it within its transfer."""

    id: str
    name: str
    size: int


class Transfer(msgspec.Struct, frozen=True):
    """A transfer. ``status`` is an open set (service.md, Versioning); ``files`` is absent from listings (None)."""

    id: str
    status: str
    subject: str
    expires_at: str | None = None
    message: str | None = None
    recipients: tuple[Recipient, ...] = ()
    files: tuple[File, ...] | None = None
    sent_at: str | None = None

    @property
    def is_draft(self) -> bool:
        return self.status == DRAFT

    @property
    def picked_up(self) -> int:
        """How many recipients have collected it."""
        return sum(recipient.picked_up_at is not None for recipient in self.recipients)


class Unreadable(msgspec.Struct, frozen=True):
    """A row of a listing that is no transfer as documented.

    :ivar position: of its page, from 0.
    :ivar id: "" where not even that can be read.
    :ivar reason: names fields and types, never values.
    """

    position: int
    id: str
    reason: str


class TransferPage(msgspec.Struct, frozen=True):
    """One page of the listing. ``next_cursor`` is None on the last page; ``unreadable`` rows are not in ``data``."""

    data: tuple[Transfer, ...]
    next_cursor: str | None = None
    unreadable: tuple[Unreadable, ...] = ()


def instant_of(text: str | None) -> float | None:
    """One of the service's ISO 8601 texts in seconds since the epoch; None where it is absent or no such text."""
    try:
        moment = msgspec.convert(text, datetime)
        return moment.timestamp() if moment.tzinfo else moment.replace(tzinfo=timezone.utc).timestamp()
    except (msgspec.ValidationError, OverflowError, ValueError):
        return None


def as_json(resource: Any) -> Any:
    """A resource, or a list of them, as mappings and lists: what an XCom or a trigger's event can carry unharmed."""
    return msgspec.json.decode(msgspec.json.encode(resource))


def as_listed(transfer: Transfer) -> dict[str, Any]:
    """A transfer as a mapping, without its files: listings have none, and a sent transfer's cannot change."""
    return {field: value for field, value in as_json(transfer).items() if field != "files"}


class NewRecipient(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A recipient as asked for. ``phone`` is secret: it appears in no text made of this object."""

    email: str
    name: str | None = None
    phone: str | None = None

    def __repr__(self) -> str:
        return f"NewRecipient({self.email!r})"


#: Each security option with what it asks of the transfer (service.md, Authentication / Recipient authentication).
SECURITY_OPTIONS: Final = ("none", "email", "email_code", "question", "sms", "login")


class NewTransfer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What POST /v1/transfers is asked to create. Made by :func:`new_transfer`, which checks it."""

    subject: str
    recipients: tuple[NewRecipient, ...]
    message: str | None = None
    security: str | None = None
    security_question: str | None = None
    security_answer: str | None = None

    def __repr__(self) -> str:
        return f"NewTransfer({self.subject!r}, {len(self.recipients)} recipients)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must appear in no log, error or rendered field."""
        phones = [recipient.phone for recipient in self.recipients if recipient.phone]
        return (*phones, *filter(None, [self.security_answer]))


def new_transfer(
    *,
    subject: str,
    recipients: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]],
    message: str | None = None,
    security: str | None = None,
    security_question: str | None = None,
    security_answer: str | None = None,
) -> NewTransfer:
    """A checked request for a draft (service.md, POST /v1/transfers).

    :param recipients: one or many addresses, or mappings with ``email`` and optionally ``name`` and ``phone``; also as
        a text of JSON or Python.
    :raises InvalidDelivery: naming every rule that is broken, one a line; secrets are not quoted.
    """
    asked = [_recipient(position, one) for position, one in enumerate(_listed(recipients), 1)]
    new = NewTransfer(
        subject or "",
        tuple(one for one in asked if isinstance(one, NewRecipient)),
        message or None,
        security or None,
        security_question or None,
        security_answer or None,
    )
    # Checks of meaning need texts that are texts.
    problems = list(_type_problems(new)) or list(_problems(new))
    if problems := [*_number_problems(len(asked)), *(one for one in asked if isinstance(one, str)), *problems]:
        raise InvalidDelivery("The delivery cannot be made, nothing was created:\n- " + "\n- ".join(problems))
    return new


def _listed(given: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]]) -> list[str | Mapping[str, Any]]:
    given = read_text(given)
    if isinstance(given, str | bytes | Mapping):
        return [given]
    return list(given) if isinstance(given, Iterable) else [given]


def _recipient(position: int, given: str | Mapping[str, Any]) -> NewRecipient | str:
    """A recipient, or what is wrong with it."""
    given = read_text(given)
    try:
        recipient = msgspec.convert({"email": given} if isinstance(given, str) else given, NewRecipient)
    except msgspec.ValidationError as error:
        # The library's text names fields and types, never values; but a phone number may be in a field's place.
        return f"recipient {position}: " + re.sub(r"\d", "#", str(error))
    if not all(map(is_unicode, filter(None, (recipient.name, recipient.phone)))):
        return f"recipient {position}: not valid Unicode"
    return recipient


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be stored and sent: it holds no half of a character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _number_problems(number: int) -> Iterator[str]:
    if not 1 <= number <= MAX_RECIPIENTS:
        yield f"recipients must be 1 to {MAX_RECIPIENTS}, not {number}"


def _type_problems(new: NewTransfer) -> Iterator[str]:
    for field in ("subject", "message", "security", "security_question", "security_answer"):
        text = getattr(new, field)
        if not isinstance(text, str | None):
            yield f"{field} must be text, not {type(text).__name__}"
        elif text and not is_unicode(text):
            yield f"{field} is not valid Unicode"


def _problems(new: NewTransfer) -> Iterator[str]:
    if not new.subject.strip():
        yield "subject must not be empty"
    if new.message is not None and len(new.message) > MAX_MESSAGE:
        yield f"message has {len(new.message):,} characters; {MAX_MESSAGE:,} are allowed"
    yield from _recipient_problems([recipient.email for recipient in new.recipients])
    yield from _security_problems(new)


def _recipient_problems(addresses: list[str]) -> list[str]:
    if malformed := [problem for address in addresses for problem in _address_problems(address)]:
        return malformed
    return [
        f"recipient {address!r} is there more than once, and each time would be an email of its own"
        for address in duplicate_addresses(addresses)
    ]


def _address_problems(address: str) -> Iterator[str]:
    from email_validator import EmailNotValidError, validate_email

    try:
        # Deliverability is the service's to judge; here only the form counts (POST /v1/transfers, rule 1).
        validate_email(address, check_deliverability=False, allow_smtputf8=True, test_environment=True)
    except EmailNotValidError as error:
        if begins_like_a_list(address):
            yield "a recipient is a text that begins like JSON, but is neither JSON nor a list or mapping of Python"
        else:
            yield f"recipient {shown(address)!r} is not an address: {error}"


def _security_problems(new: NewTransfer) -> Iterator[str]:
    if new.security is not None and new.security not in SECURITY_OPTIONS:
        yield f"security must be one of {', '.join(SECURITY_OPTIONS)}, not {new.security!r}"
    # Without a security the account's default applies, which may be any: the service judges then.
    for field in ("security_question", "security_answer"):
        given = getattr(new, field) is not None
        if new.security == "question" and not given:
            yield f"security 'question' needs {field}"
        elif given and new.security not in (None, "question"):
            yield f"{field} is not used with security {new.security!r}"
    if new.security == "sms":
        yield from _phone_problems(new.recipients)


def _phone_problems(recipients: tuple[NewRecipient, ...]) -> Iterator[str]:
    for recipient in recipients:
        if not recipient.phone:
            yield f"security 'sms' needs the phone of {shown(recipient.email)}"
        elif not re.fullmatch("[0-9]+", re.sub(r"[\W_]", "", recipient.phone)):
            whose = shown(recipient.email)
            yield f"the phone of {whose} must be digits, with spaces and punctuation between them at most"
