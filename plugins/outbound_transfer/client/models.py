"""The service's resources (service-api.md, R11 to R13), decoded leniently, and uploads."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from outbound_transfer.client.errors import MalformedResponse, SourceChanged
from outbound_transfer.client.new_transfer import NewTransfer, normalize_address

#: The documented statuses (service-api.md, R17). They are plain strings, because the set is open (R5).
DRAFT: Final = "draft"
PENDING: Final = "pending"
PARTIAL: Final = "partial"
COMPLETE: Final = "complete"
CANCELED: Final = "canceled"
EXPIRED: Final = "expired"

#: Stands for a character that could not be read.
_UNREADABLE: Final = "\ufffd"


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
    def picked_up(self) -> list[str]:
        """Addresses of the recipients who have picked up."""
        return [recipient.email for recipient in self.recipients if recipient.picked_up_at is not None]

    @property
    def not_picked_up(self) -> list[str]:
        """Addresses of the recipients who have not picked up."""
        return [recipient.email for recipient in self.recipients if recipient.picked_up_at is None]


#: Subject and sorted addresses, normalized for case, white space and composed characters.
Identity: TypeAlias = tuple[str, tuple[str, ...]]


def identity_of(transfer: Transfer | NewTransfer) -> Identity:
    """Return what tells a transfer from another one with its id; that of a draft cannot change (service-api.md, R20).

    An id alone proves nothing: another account may use the same.
    """
    addresses = (normalize_address(recipient.email) for recipient in transfer.recipients)
    subject = unicodedata.normalize("NFC", transfer.subject).casefold().split()
    return " ".join(subject), tuple(sorted(addresses))


class UnreadableRow(msgspec.Struct, frozen=True):
    """A row of a listing that is not a valid transfer.

    :ivar id: "" if not even the id can be read.
    :ivar reason: names fields and types, never values.
    :ivar sent_at: None if it cannot be read.
    """

    id: str
    reason: str
    sent_at: str | None = None


class TransferPage(msgspec.Struct, frozen=True):
    """A page of the listing. ``next_cursor`` is None on the last page; ``unreadable`` rows are not in ``data``."""

    data: tuple[Transfer, ...]
    next_cursor: str | None = None
    unreadable: tuple[UnreadableRow, ...] = ()

    @property
    def rows(self) -> tuple[Transfer | UnreadableRow, ...]:
        """All rows, the unreadable ones last."""
        return (*self.data, *self.unreadable)


class _Rows(msgspec.Struct):
    data: list[Any]
    next_cursor: str | None  # always there (service-api.md, R14), so its absence says nothing


class _Pickup(msgspec.Struct):
    picked_up_at: str | None  # without a default: null says something, a missing field does not


class _Pickups(msgspec.Struct):
    recipients: Annotated[tuple[_Pickup, ...], msgspec.Meta(min_length=1)]


def decode_transfer(body: bytes) -> Transfer:
    """Decode one transfer. Unpaired surrogates are replaced.

    :raises msgspec.DecodeError: it is not a valid transfer.
    """
    return _convert_transfer(_parse(body))


def decode_pickups(body: bytes) -> Transfer:
    """Decode one transfer that says of every recipient whether they have picked up: silence is no answer.

    :raises msgspec.DecodeError: it does not.
    :raises MalformedResponse: its status contradicts what the recipients have done (service-api.md, R17).
    """
    value = _parse(body)
    transfer, _ = _convert_transfer(value), msgspec.convert(value, _Pickups)
    some, everybody = bool(transfer.picked_up), not transfer.not_picked_up
    plausible = {DRAFT: not some, PENDING: not some, PARTIAL: some and not everybody, COMPLETE: everybody}
    if not (plausible | {EXPIRED: not everybody}).get(transfer.status, True):
        raise MalformedResponse(
            f"get: the response contradicts itself about who has picked up transfer {transfer.id}: it is "
            f"{transfer.status!r:.100}, and {len(transfer.picked_up)} of {len(transfer.recipients)} recipients have"
        )
    return transfer


def decode_page(body: bytes) -> TransferPage:
    """Decode one page of the listing. An invalid row hides no other: it is in ``unreadable``.

    :raises msgspec.DecodeError: it is not a page.
    """
    rows = msgspec.convert(_parse(body), _Rows)
    if _UNREADABLE in (rows.next_cursor or ""):
        raise msgspec.ValidationError("next_cursor is not valid Unicode")
    decoded, unreadable = list[Transfer](), list[UnreadableRow]()
    for row in rows.data:
        try:
            decoded.append(_convert_transfer(row))
        except (msgspec.ValidationError, RecursionError) as error:
            fields = row if isinstance(row, dict) else {}
            texts = {name: text for name, text in fields.items() if isinstance(text, str) and _UNREADABLE not in text}
            unreadable.append(UnreadableRow(texts.get("id", ""), str(error), texts.get("sent_at")))
    return TransferPage(tuple(decoded), rows.next_cursor, tuple(unreadable))


def _parse(body: bytes) -> Any:
    """Parse JSON, also if msgspec refuses it; bytes and surrogates that are not UTF-8 become U+FFFD."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(body)
    try:
        # Python refuses to parse very long integers, and with them the whole text.
        value = json.loads(body.decode(errors="replace"), strict=False, parse_int=lambda digits: int(digits[:300]))
        # Dumped without escapes, as escapes can express unpaired surrogates.
        return json.loads(re.sub("[\ud800-\udfff]", _UNREADABLE, json.dumps(value, ensure_ascii=False)))
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _convert_transfer(value: Any) -> Transfer:
    transfer = msgspec.convert(value, Transfer)
    if _UNREADABLE in transfer.id:  # a repaired id could belong to another transfer
        raise msgspec.ValidationError("the id is not valid Unicode")
    return transfer


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


@dataclass(frozen=True)
class Upload:
    """A file to attach.

    :ivar name: name of the file at the service.
    :ivar size: in bytes.
    :ivar chunks: returns the content; each call starts at the first byte.
    """

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]

    def body(self) -> Iterator[bytes]:
        """Yield the chunks that are not empty, the last one only once it is known to be the last.

        So the service never gets a complete but truncated file.

        :raises SourceChanged: there are more or fewer than ``size`` bytes.
        """
        left, last = self.size, b""
        for chunk in filter(None, self.chunks()):
            left -= len(chunk)
            if left < 0:
                break
            if last:
                yield last
            last = chunk
        if left:
            raise SourceChanged(
                f"{self.name!r} is {'longer' if left < 0 else 'shorter'} than the {self.size} bytes that were "
                "declared. Deliver a copy of it that nothing writes to any more."
            )
        if last:
            yield last


class Attached(NamedTuple):
    """The service's record of a file, and how it came to be attached (service-api.md, R31).

    :ivar is_new: this attempt attached it (201); otherwise the draft already had a file of this name (200).
    :ivar is_doubtful: an earlier attempt of this call ended without a response, and may have
        attached it, or still may.
    """

    file: File
    is_new: bool
    is_doubtful: bool
