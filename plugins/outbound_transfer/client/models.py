"""The service's resources (service-api.md, R11 to R13), the validated request for a draft, and uploads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from outbound_transfer.client.addresses import duplicate_addresses
from outbound_transfer.client.errors import InvalidDelivery, SourceChanged
from outbound_transfer.client.recipients import RECIPIENT_FIELDS, is_structured_text, parse_text, show_address
from outbound_transfer.client.wording import hint_at_pair, pluralize

#: The documented statuses (service-api.md, R17). They are plain strings, because the set is open (R5).
DRAFT: Final = "draft"
PENDING: Final = "pending"
PARTIAL: Final = "partial"
COMPLETE: Final = "complete"
CANCELED: Final = "canceled"
EXPIRED: Final = "expired"

MAX_RECIPIENTS: Final = 250
MAX_MESSAGE_LENGTH: Final = 2_000


class Recipient(msgspec.Struct, frozen=True):
    """A recipient of a transfer. ``picked_up_at`` is ISO 8601, and None until the recipient picks up."""

    email: str
    name: str | None = None
    picked_up_at: str | None = None


class File(msgspec.Struct, frozen=True):
    """An attached file. ``size`` is in bytes; ``name`` is unique within its transfer (service-api.md, R32)."""

    id: str
    name: str
    size: int


class Transfer(msgspec.Struct, frozen=True):
    """A transfer. ``status`` may be any text (service-api.md, R5); ``files`` is None in listings."""

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
    def picked_up_count(self) -> int:
        """Number of recipients who have picked up."""
        return len(self.picked_up)

    @property
    def picked_up(self) -> list[str]:
        """Addresses of the recipients who have picked up."""
        return [recipient.email for recipient in self.recipients if recipient.picked_up_at is not None]

    @property
    def not_picked_up(self) -> list[str]:
        """Addresses of the recipients who have not picked up."""
        return [recipient.email for recipient in self.recipients if recipient.picked_up_at is None]


def has_contradictory_pickups(transfer: Transfer) -> bool:
    """Return whether the status contradicts what the recipients have done (service-api.md, R17)."""
    some, all_of_them = bool(transfer.picked_up), not transfer.not_picked_up
    match transfer.status:
        case "draft" | "pending":
            return some
        case "partial":
            return not some or all_of_them
        case "complete":
            return not all_of_them
        case "expired":
            return all_of_them
    return False


class UnreadableRow(msgspec.Struct, frozen=True):
    """A row of a listing that is not a valid transfer.

    Subject and addresses are personal data, so no representation of this object shows them.

    :ivar position: index within the page, from 0.
    :ivar id: "" if not even the id can be read.
    :ivar reason: names fields and types, never values.
    :ivar subject: None if it cannot be read.
    :ivar addresses: of the recipients; None if one of them cannot be read.
    :ivar sent_at: None if it cannot be read.
    """

    position: int
    id: str
    reason: str
    subject: str | None = None
    addresses: tuple[str, ...] | None = None
    sent_at: str | None = None

    def __repr__(self) -> str:
        return f"UnreadableRow(position={self.position}, id={self.id!r}, reason={self.reason!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("position", self.position), ("id", self.id), ("reason", self.reason)]


class TransferPage(msgspec.Struct, frozen=True):
    """A page of the listing. ``next_cursor`` is None on the last page; ``unreadable`` rows are not in ``data``."""

    data: tuple[Transfer, ...]
    next_cursor: str | None = None
    unreadable: tuple[UnreadableRow, ...] = ()

    @property
    def rows(self) -> tuple[Transfer | UnreadableRow, ...]:
        """All rows in the order of the page."""
        rows: list[Transfer | UnreadableRow] = [*self.data]
        for each in self.unreadable:  # sorted by position, so each insertion shifts the next to its place
            rows.insert(each.position, each)
        return tuple(rows)


def to_epoch(text: str | None) -> float | None:
    """Convert an ISO 8601 text (UTC if it has no offset) to seconds since the epoch; None if invalid."""
    try:
        timestamp = msgspec.convert(text, datetime)
        return timestamp.timestamp() if timestamp.tzinfo else timestamp.replace(tzinfo=UTC).timestamp()
    except (msgspec.ValidationError, OverflowError, ValueError):
        return None


def to_builtins(resource: Any) -> Any:
    """Convert a resource, or a list of resources, to mappings and lists, as XComs and trigger events need them."""
    return msgspec.json.decode(msgspec.json.encode(resource))


def to_result(transfer: Transfer) -> dict[str, Any]:
    """Convert a transfer to a mapping with the addresses of those who have not picked up, as tasks return it."""
    return {**to_builtins(transfer), "not_picked_up": transfer.not_picked_up}


def to_summary_dict(transfer: Transfer) -> dict[str, Any]:
    """Convert a transfer as :func:`to_result` does, without its files: listings have none, those sent are fixed."""
    return {field: value for field, value in to_result(transfer).items() if field != "files"}


class NewRecipient(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A requested recipient. ``phone`` is secret: no representation of this object shows it."""

    email: str
    name: str | None = None
    phone: str | None = None

    def __repr__(self) -> str:
        return f"NewRecipient({self.email!r})"


_FIELDS: Final = "email, name and phone"

#: Values of ``security`` (service-api.md, R10).
SECURITY_OPTIONS: Final = ("none", "email", "email_code", "question", "sms", "login")


class NewTransfer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/transfers (service-api.md, R22), as validated by :func:`build_new_transfer`."""

    subject: str
    recipients: tuple[NewRecipient, ...]
    message: str | None = None
    security: str | None = None
    security_question: str | None = None
    security_answer: str | None = None

    def __repr__(self) -> str:
        return f"NewTransfer({self.subject!r}, {pluralize(len(self.recipients), 'recipient')})"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no log, error or rendered field may show."""
        phones = [recipient.phone for recipient in self.recipients if recipient.phone]
        return (*phones, *filter(None, [self.security_answer]))


def build_new_transfer(
    *,
    subject: str,
    recipients: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]],
    message: str | None = None,
    security: str | None = None,
    security_question: str | None = None,
    security_answer: str | None = None,
) -> NewTransfer:
    """Validate and build the request for a draft (service-api.md, R22 to R25).

    :param subject: not empty.
    :param recipients: one or several addresses, or mappings with ``email`` and optionally ``name`` and ``phone``; or
        such a list or mapping as text, in JSON or Python.
    :param message: at most 2,000 characters.
    :param security: one of :data:`SECURITY_OPTIONS`; the account's default if omitted or None. An empty text is
        refused: the account's default may be weaker than what a template without a value was to give.
    :param security_question: for security ``question`` only.
    :param security_answer: for security ``question`` only; secret.
    :raises InvalidDelivery: one line for each broken rule; secrets are not quoted.
    """
    parsed = [_parse_recipient(position, each) for position, each in enumerate(as_recipient_list(recipients), 1)]
    new = NewTransfer(
        subject or "",
        tuple(each for each in parsed if isinstance(each, NewRecipient)),
        message or None,
        security,
        security_question or None,
        security_answer or None,
    )
    # The other checks need valid types.
    problems = list(_type_problems(new)) or list(_problems(new))
    if problems := [*_number_problems(len(parsed)), *(each for each in parsed if isinstance(each, str)), *problems]:
        raise InvalidDelivery("The delivery cannot be made, nothing was created:\n- " + "\n- ".join(problems))
    return new


def as_recipient_list(
    given: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]],
) -> list[str | Mapping[str, Any]]:
    """Return recipients in whatever form they are given as a list, each as it is."""
    given = parse_text(given)
    if isinstance(given, str | bytes | Mapping):
        return [given]
    return list(given) if isinstance(given, Iterable) else [given]


def _parse_recipient(position: int, given: str | Mapping[str, Any]) -> NewRecipient | str:
    """Return a recipient, or what is wrong with it."""
    given = parse_text(given)
    if isinstance(given, str):
        given = {"email": given}
    if not isinstance(given, Mapping):
        return f"recipient {position}: must be an address or a mapping, not {type(given).__name__}{hint_at_pair(given)}"
    if unknown := sorted(str(field) for field in given if field not in RECIPIENT_FIELDS):
        return f"recipient {position}: has the field {unknown[0]!r:.100}, but may only have {_FIELDS}"
    try:
        recipient = msgspec.convert(given, NewRecipient)
    except msgspec.ValidationError as error:
        return f"recipient {position}: {error}"  # the library's message names fields and types, never values
    if not all(map(is_valid_unicode, filter(None, (recipient.name, recipient.phone)))):
        return f"recipient {position}: not valid Unicode"
    return recipient


def is_valid_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogates, and can therefore be stored and sent."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _number_problems(number: int) -> Iterator[str]:
    if not 1 <= number <= MAX_RECIPIENTS:
        yield f"recipients must be 1 to {MAX_RECIPIENTS}, not {number}{': split the delivery' if number else ''}"


def _type_problems(new: NewTransfer) -> Iterator[str]:
    for field in ("subject", "message", "security", "security_question", "security_answer"):
        text = getattr(new, field)
        if not isinstance(text, str | None):
            yield f"{field} must be text, not {type(text).__name__}"
        elif text and not is_valid_unicode(text):
            yield f"{field} is not valid Unicode"


def _problems(new: NewTransfer) -> Iterator[str]:
    if not new.subject.strip():
        yield "subject must not be empty; a template without a value is"
    if new.message is not None and len(new.message) > MAX_MESSAGE_LENGTH:
        yield f"message has {len(new.message):,} characters; {MAX_MESSAGE_LENGTH:,} are allowed"
    yield from _recipient_problems([recipient.email for recipient in new.recipients])
    yield from _security_problems(new)


def _recipient_problems(addresses: list[str]) -> list[str]:
    if malformed := [problem for address in addresses for problem in _address_problems(address)]:
        return malformed
    return [
        f"recipient {address!r} occurs more than once, and would get one email each time"
        for address in duplicate_addresses(addresses)
    ]


def _address_problems(address: str) -> Iterator[str]:
    from email_validator import EmailNotValidError, validate_email

    try:
        # The service checks whether an address accepts mail; here only its form counts (service-api.md, R23).
        validate_email(address, check_deliverability=False, allow_smtputf8=True, test_environment=True)
    except EmailNotValidError as error:
        if is_structured_text(address):
            yield "a recipient starts like JSON, but is neither JSON nor a list or mapping in Python"
        else:
            hint = " Give several addresses as a list." if address.count("@") > 1 else ""
            yield f"recipient {show_address(address)!r} is not an address: {error}{hint}"


def _describe_wrong_option(security: Any) -> str:
    if security == "":
        return "security must not be empty: leave it out, or give None, for the account's default"
    if security is not None and security not in SECURITY_OPTIONS:
        return f"security must be one of {', '.join(SECURITY_OPTIONS)}, not {security!r:.100}"
    return ""


def _security_problems(new: NewTransfer) -> Iterator[str]:
    if problem := _describe_wrong_option(new.security):
        yield problem
    # Without security the account's default applies, which is unknown here; the service then validates.
    for field in ("security_question", "security_answer"):
        given = getattr(new, field) is not None
        if new.security == "question" and not given:
            yield f"security 'question' needs {field}"
        elif given and new.security not in (None, "", "question"):
            yield f"{field} is not used with security {new.security!r}"
    if new.security == "sms":
        yield from _phone_problems(new.recipients)


def _phone_problems(recipients: tuple[NewRecipient, ...]) -> Iterator[str]:
    for recipient in recipients:
        if not recipient.phone:
            yield f"security 'sms' needs the phone of {show_address(recipient.email)}"
        elif not re.fullmatch("[0-9]+", re.sub(r"[\W_]", "", recipient.phone)):
            whose = show_address(recipient.email)
            yield f"the phone of {whose} must be digits, optionally with spaces and punctuation"


@dataclass(frozen=True)
class Upload:
    """A file to attach.

    :ivar name: name of the file at the service.
    :ivar size: in bytes.
    :ivar chunks: returns the content; each call starts at the first byte.
    :ivar location: path or URI of the file, for lineage; "" if there is none.
    """

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]
    location: str = ""

    def body(self) -> Iterator[bytes]:
        """Yield the chunks that are not empty.

        :raises SourceChanged: there are more or fewer than ``size`` bytes, so the service would store another file.
        """
        left = self.size
        for chunk in filter(None, self.chunks()):
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left:
            raise SourceChanged(f"{self.name!r} is not the {self.size} bytes that were declared")


class Attached(NamedTuple):
    """The service's record of a file, and how it came to be attached (service-api.md, R31).

    :ivar is_new: this attempt attached it (201); otherwise the draft already had a file of this name (200).
    :ivar is_doubtful: an earlier attempt of this call ended without a response, and may have
        attached it, or still may.
    """

    file: File
    is_new: bool
    is_doubtful: bool


class Discarded(Enum):
    """What became of a draft that was to be discarded (service-api.md, R35)."""

    REMOVED = "the draft is removed"
    NOT_FOUND = "the connection's key sees no such transfer: it was removed before, or is another user's"
    SENT = "it was sent, so it is left alone"
