"""The service's resources (service-api.md, R11 to R13), decoded leniently, in words and as results; and uploads."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from outbound_transfer.client.errors import MalformedResponse, SourceChanged
from outbound_transfer.client.new_transfer import NewTransfer, normalize_address
from outbound_transfer.wording import redact

# The documented statuses (service-api.md, R17). They are plain strings, because the set is open (R5).
DRAFT: Final = "draft"
PENDING: Final = "pending"
PARTIAL: Final = "partial"
COMPLETE: Final = "complete"
CANCELED: Final = "canceled"
EXPIRED: Final = "expired"
KNOWN_STATUSES: Final = (DRAFT, PENDING, PARTIAL, COMPLETE, CANCELED, EXPIRED)

#: Appended to log lines about a draft, and about a status that is not documented.
STATUS_HINTS: Final = (
    "; it was never sent, so nobody can pick it up, and the wait continues. Check that a task of this run sends it",
    "; this status is unknown to this version of the provider, so the wait continues. "
    "Upgrade the provider if a later version knows the status",
)

OUTCOME_KEY: Final = "outcome"  # the XCom of a task that did not succeed, with the fields of TransferOutcome
_UNREADABLE: Final = "\ufffd"  # stands for a character that could not be read


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
    """A transfer. ``status`` may be any string (service-api.md, R5); ``files`` is None in listings.

    ``picked_up`` and ``not_picked_up`` are addresses.
    """

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
        return [recipient.email for recipient in self.recipients if recipient.picked_up_at is not None]

    @property
    def not_picked_up(self) -> list[str]:
        return [recipient.email for recipient in self.recipients if recipient.picked_up_at is None]


def identity_of(transfer: Transfer | NewTransfer) -> tuple[str, tuple[str, ...]]:
    """Return normalized subject and addresses, as another account may use the same id; a draft's are fixed (R20)."""
    addresses = (normalize_address(recipient.email) for recipient in transfer.recipients)
    subject = unicodedata.normalize("NFC", transfer.subject).casefold().split()
    return " ".join(subject), tuple(sorted(addresses))


class UnreadableRow(msgspec.Struct, frozen=True):
    """A row of a listing that is not a valid transfer; ``reason`` quotes no values, ``id`` may be ""."""

    id: str
    reason: str
    sent_at: str | None = None


class TransferPage(msgspec.Struct, frozen=True):
    """A page of the listing. ``next_cursor`` is None on the last page; ``data`` has no ``unreadable`` rows."""

    data: tuple[Transfer, ...]
    next_cursor: str | None = None
    unreadable: tuple[UnreadableRow, ...] = ()

    @property
    def rows(self) -> tuple[Transfer | UnreadableRow, ...]:
        return (*self.data, *self.unreadable)


class _Rows(msgspec.Struct):
    data: list[Any]
    next_cursor: str | None  # always there (service-api.md, R14), so its absence says nothing


def decode_transfer(body: bytes) -> Transfer:
    """:raises msgspec.DecodeError: it is not a valid transfer."""
    return _convert_transfer(_parse(body))


def decode_pickups(body: bytes) -> Transfer:
    """Decode one transfer that shows for every recipient whether they have picked up: a missing field is not an answer.

    :raises msgspec.DecodeError: it does not show this, or is not a valid transfer.
    :raises MalformedResponse: its status contradicts what the recipients have done (service-api.md, R17).
    """
    value = _parse(body)
    transfer = _convert_transfer(value)
    # null says something, a missing field does not
    if not transfer.recipients or any("picked_up_at" not in each for each in value["recipients"]):
        raise msgspec.ValidationError("it does not say for every recipient whether they have picked up")
    some, everybody = bool(transfer.picked_up), not transfer.not_picked_up
    plausible = {DRAFT: not some, PENDING: not some, PARTIAL: some and not everybody, COMPLETE: everybody}
    if not (plausible | {EXPIRED: not everybody}).get(transfer.status, True):
        raise MalformedResponse(
            f"get: the response contradicts itself about pickups of transfer {transfer.id}: its status is "
            f"{transfer.status!r:.100}, and {len(transfer.picked_up)} of {len(transfer.recipients)} recipients have"
        )
    return transfer


def decode_page(body: bytes) -> TransferPage:
    """Decode one page of the listing. Invalid rows do not hide the others; they are in ``unreadable``.

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
    """Parse JSON, even if msgspec rejects it; bytes and surrogates that are not UTF-8 become U+FFFD."""
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
    if _UNREADABLE in transfer.id or not transfer.id.isprintable():  # repaired, it could be another transfer's
        raise msgspec.ValidationError("the id is not printable text")
    # Log lines show them.
    shown = {name: getattr(transfer, name) for name in ("status", "expires_at", "sent_at")}
    changed = {name: redact(text, ()) for name, text in shown.items() if text and not text.isprintable()}
    return msgspec.structs.replace(transfer, **changed) if changed else transfer


def to_builtins(resource: Any) -> Any:
    """Convert a resource, or a list of them, to mappings and lists, as XComs and trigger events need them."""
    return msgspec.json.decode(msgspec.json.encode(resource))


def to_result(transfer: Transfer) -> dict[str, Any]:
    """Convert a transfer to a mapping with the addresses of those who have not picked up, as tasks return it."""
    return {**to_builtins(transfer), "not_picked_up": transfer.not_picked_up}


def to_summary_dict(transfer: Transfer) -> dict[str, Any]:
    """Convert a transfer as :func:`to_result` does, without its files, which listings omit."""
    return {field: value for field, value in to_result(transfer).items() if field != "files"}


def describe(transfer: Transfer) -> str:
    """Describe the state of a transfer in one line, with up to five recipients who have not picked up."""
    outstanding = transfer.not_picked_up
    some = redact(", ".join(outstanding[:5]), ())
    not_by = f"; not by {some}{' …' if len(outstanding) > 5 else ''}" if outstanding else ""
    picked_up = f"picked up by {len(transfer.picked_up)} of {len(transfer.recipients)}"
    return f"transfer {transfer.id} is {transfer.status}: {picked_up}{not_by}"


def status_hint(transfer: Transfer) -> str:
    """Return what to append to a log line about a status that a wait does not expect; "" for the others."""
    draft, unknown = STATUS_HINTS
    return draft if transfer.is_draft else "" if transfer.status in KNOWN_STATUSES else unknown


class TransferOutcome(msgspec.Struct, frozen=True):
    """The state of a transfer whose task did not succeed, and why; for callbacks, notifiers and other tasks.

    Unknown values are None, never "nobody", as is ``status`` after a send in doubt. ``picked_up`` lists addresses.
    """

    transfer_id: str
    reason: str
    status: str | None = None
    subject: str | None = None
    picked_up: list[str] | None = None
    not_picked_up: list[str] | None = None

    @classmethod
    def from_transfer(cls, transfer: Transfer, reason: str) -> TransferOutcome:
        return cls(transfer.id, reason, transfer.status, transfer.subject, transfer.picked_up, transfer.not_picked_up)


def outcome_of(error: object) -> TransferOutcome | None:
    """Return what became of a task's transfer, from the error that ended it; None if it had no transfer yet.

    :param error: in a callback ``context.get("exception")``.
    """
    outcome = getattr(error, "outcome", None)
    return outcome if isinstance(outcome, TransferOutcome) else None


@dataclass(frozen=True)
class Upload:
    """A file to attach: its name at the service, its size in bytes, and its content, at each call from the start."""

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
                "declared. Deliver a copy that is no longer written to."
            )
        if last:
            yield last


class Attached(NamedTuple):
    """The service's record of a file, and whether this attempt attached it (201) or it already existed (200; R31)."""

    file: File
    is_new: bool
    is_doubtful: bool  # whether an earlier attempt of this call got no response: it may attach the file even now
