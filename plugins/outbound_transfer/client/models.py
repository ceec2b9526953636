"""The service's resources (service-api.md, R11 to R13), decoded leniently, and uploads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from outbound_transfer.client.addresses import normalize_address, normalize_text
from outbound_transfer.client.errors import InvalidDelivery, SourceChanged
from outbound_transfer.client.wording import is_valid_unicode

if TYPE_CHECKING:
    from outbound_transfer.client.new_transfer import NewTransfer

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
    some, everybody = bool(transfer.picked_up), not transfer.not_picked_up
    is_plausible = {
        DRAFT: not some,
        PENDING: not some,
        PARTIAL: some and not everybody,
        COMPLETE: everybody,
        EXPIRED: not everybody,
    }
    return not is_plausible.get(transfer.status, True)


#: Subject and sorted addresses, normalized for case, white space and composed characters.
Identity: TypeAlias = tuple[str, tuple[str, ...]]


def identity_of(transfer: Transfer | NewTransfer) -> Identity:
    """Return what tells a transfer from another one with its id; that of a draft cannot change (service-api.md, R20).

    An id alone proves nothing: another account may use the same.
    """
    addresses = (normalize_address(recipient.email) for recipient in transfer.recipients)
    return normalize_text(transfer.subject), tuple(sorted(addresses))


def has_exactly_files(transfer: Transfer, files: Mapping[str, int]) -> bool:
    """Return whether a transfer has exactly these files; False also if it comes without its files, as in a listing.

    :param files: sizes in bytes, by name.
    """
    held = None if transfer.files is None else sorted((file.name, file.size) for file in transfer.files)
    return held == sorted(files.items())


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


class _Page(msgspec.Struct):
    data: tuple[Transfer, ...]
    next_cursor: str | None  # always there (service-api.md, R14), so its absence says nothing


class _Rows(msgspec.Struct):
    data: list[Any]
    next_cursor: str | None


class _Pickup(msgspec.Struct):
    picked_up_at: str | None  # without a default: null says something, a missing field does not


class _Pickups(msgspec.Struct):
    recipients: Annotated[tuple[_Pickup, ...], msgspec.Meta(min_length=1)]


def decode_transfer(body: bytes) -> Transfer:
    """Decode one transfer. Unpaired surrogates are replaced.

    :raises msgspec.DecodeError: it is not a valid transfer.
    """
    try:
        return msgspec.json.decode(body, type=Transfer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _convert_transfer(_parse_leniently(body))


def check_pickups(body: bytes) -> None:
    """Check that a transfer has recipients, and says of each whether they have picked up: silence is no answer.

    :raises msgspec.DecodeError: it does not.
    """
    msgspec.convert(_parse_leniently(body), _Pickups)


def decode_page(body: bytes) -> TransferPage:
    """Decode one page of the listing. An invalid row hides no other: it is in ``unreadable``.

    :raises msgspec.DecodeError: it is not a page.
    """
    try:
        page = msgspec.json.decode(body, type=_Page)
        return TransferPage(page.data, page.next_cursor)
    except (msgspec.DecodeError, UnicodeDecodeError):
        rows = msgspec.convert(_parse_leniently(body), _Rows)
    if _UNREADABLE in (rows.next_cursor or ""):
        raise msgspec.ValidationError("next_cursor is not valid Unicode")
    decoded: list[Transfer] = []
    unreadable: list[UnreadableRow] = []
    for row in rows.data:
        try:
            decoded.append(_convert_transfer(row))
        except (msgspec.ValidationError, RecursionError) as error:
            fields = row if isinstance(row, dict) else {}
            texts = {name: text for name, text in fields.items() if isinstance(text, str) and _UNREADABLE not in text}
            unreadable.append(UnreadableRow(texts.get("id", ""), str(error), texts.get("sent_at")))
    return TransferPage(tuple(decoded), rows.next_cursor, tuple(unreadable))


def _parse_leniently(body: bytes) -> Any:
    """Parse JSON that msgspec refuses, without what UTF-8 cannot encode: bytes, control characters, lone surrogates."""
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


def resolve_transfer_id(given: Any) -> str:
    """Return the id of a transfer.

    :param given: the id, or a mapping with the key ``id``: the result of the task that made the delivery.
    :raises InvalidDelivery: it is neither, for example None from the XCom of a task that pushed nothing.
    """
    transfer_id = given.get("id") if isinstance(given, Mapping) else given
    # A template renders None as "None".
    if not isinstance(transfer_id, str) or transfer_id.strip() in ("", "None") or not is_valid_unicode(transfer_id):
        kind = "" if given is None else f" ({type(given).__name__})"
        shown = f"a mapping whose id is {transfer_id!r:.100}" if isinstance(given, Mapping) else f"{given!r:.100}{kind}"
        raise InvalidDelivery(
            "transfer_id must be the id of a transfer, or the result of the task that made the delivery, not "
            f"{shown}. None usually means that the task pushed no XCom."
        )
    return transfer_id


def check_delivery_key(delivery_key: Any) -> str:
    """Return the key if it can be one.

    :raises InvalidDelivery: a template without a value has made it, or a database cannot show it.
    """
    key = delivery_key if isinstance(delivery_key, str) else ""
    if key in ("", "None") or key != key.strip() or not key.isprintable():
        raise InvalidDelivery(
            "delivery_key must be a text of printable characters without spaces around them, and not 'None', which a "
            f"template without a value gives: {delivery_key!r:.300}"
        )
    return key


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
