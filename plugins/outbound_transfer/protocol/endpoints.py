"""Every endpoint of the service as a pure function that returns a call (service-api.md, R22 to R42)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from outbound_transfer.protocol import events
from outbound_transfer.protocol.decoding import check_pickups, decode_page, decode_transfer
from outbound_transfer.protocol.errors import InvalidDelivery, MalformedResponse
from outbound_transfer.protocol.messages import Api, Call, Operation, Reconciliation, Response, Upload
from outbound_transfer.protocol.models import File, NewTransfer, Transfer, TransferPage, has_contradictory_pickups
from outbound_transfer.protocol.retry_after import parse_http_date

T = TypeVar("T")

#: A feed page is read as a whole, so that it is loaded completely or not at all.
MAX_FEED_PAGE_BYTES: Final = 256 * 1024 * 1024

#: Creates that may end in doubt, each of which may leave an unused draft.
MAX_DRAFTS: Final = 2

#: Maximum ``limit`` of a page of transfers and of a page of events (service-api.md, R59).
MAX_PAGE_SIZE: Final = 100
MAX_EVENTS_PER_PAGE: Final = 1_000


class AttachResult(NamedTuple):
    """The service's record of an attached file, and where the file came from (service-api.md, R31).

    :ivar is_new: this attempt attached the file (201); otherwise the draft already had a file of this name (200).
    :ivar after_in_doubt_attempt: an earlier attempt of the same call may have attached it.
    """

    file: File
    is_new: bool
    after_in_doubt_attempt: bool


def create_transfer(new: NewTransfer) -> Call[Transfer]:
    """POST /v1/transfers: create a draft (service-api.md, R22).

    Drafts are never listed (R27), so nobody can find out whether a create in doubt was applied. It is repeated only
    after another call has shown that the service responds again. A duplicate draft is invisible, unbilled and expires.

    :param new: as built by :func:`.models.build_new_transfer`.
    """
    return Call(
        Operation.CREATE,
        "POST",
        "/v1/transfers",
        _decode_transfer,
        body=msgspec.json.encode(new),
        secrets=new.secrets,
        reconciliation=Reconciliation(list_transfers(limit=1), lambda _: None, warning=""),
        max_in_doubt_attempts=MAX_DRAFTS,
    )


def list_transfers(*, limit: int = MAX_PAGE_SIZE, status: str = "all", cursor: str | None = None) -> Call[TransferPage]:
    """GET /v1/transfers: one page of sent transfers, newest first; drafts are never listed (service-api.md, R26, R27).

    :param limit: 1 to 100.
    :param status: ``all``, or a status of a sent transfer (service-api.md, R26).
    :param cursor: ``next_cursor`` of the previous page.
    """
    params: dict[str, str | int] = {"limit": limit, "status": status}
    if cursor is not None:
        params["cursor"] = cursor
    return Call(Operation.LIST, "GET", "/v1/transfers", _decode_page, params=params)


def probe_transfers() -> Call[datetime | None]:
    """GET /v1/transfers with a page of one: the service's time, as the response's ``Date`` says; None if it does not.

    Uses up one of the key's calls of the minute (service-api.md, R53).
    """
    return replace(list_transfers(limit=1), decode=_decode_time)  # type: ignore[arg-type, return-value]


def get_transfer(transfer_id: str) -> Call[Transfer]:
    """GET /v1/transfers/{transfer_id}: a draft or a sent transfer, with its files (service-api.md, R29)."""
    return Call(Operation.GET, "GET", _path(transfer_id), partial(_decode_transfer_with_id, transfer_id))


def get_pickups(transfer_id: str) -> Call[Transfer]:
    """As :func:`get_transfer`, with a response that says of every recipient whether they have picked up."""
    return replace(get_transfer(transfer_id), decode=partial(_decode_pickups, transfer_id))


def attach_file(transfer_id: str, upload: Upload) -> Call[AttachResult]:
    """POST /v1/transfers/{transfer_id}/files: attach a file; 200 instead of 201 if the name exists (R30 to R32)."""
    return Call(Operation.ATTACH, "POST", _path(transfer_id, "files"), _decode_attach, upload=upload)


def list_files(transfer_id: str) -> Call[tuple[File, ...]]:
    """GET /v1/transfers/{transfer_id}/files: all files in one response (service-api.md, R34)."""
    return Call(Operation.LIST_FILES, "GET", _path(transfer_id, "files"), _decode_files)


def get_file(transfer_id: str, file_id: str) -> Call[File]:
    """GET /v1/transfers/{transfer_id}/files/{file_id}: the record of one file (service-api.md, R34)."""
    return Call(Operation.GET_FILE, "GET", _path(transfer_id, "files", file_id), _decoder(File))


def remove_file(transfer_id: str, file_id: str) -> Call[None]:
    """DELETE /v1/transfers/{transfer_id}/files/{file_id}: remove a file from a draft (service-api.md, R20, R34)."""
    return Call(Operation.REMOVE, "DELETE", _path(transfer_id, "files", file_id), _decode_nothing)


def discard_transfer(transfer_id: str) -> Call[None]:
    """DELETE /v1/transfers/{transfer_id}: discard a draft (service-api.md, R35)."""
    return Call(Operation.DISCARD, "DELETE", _path(transfer_id), _decode_nothing)


def send_transfer(transfer_id: str) -> Call[Transfer]:
    """POST /v1/transfers/{transfer_id}/send: bill the account and email the recipients, irreversibly (R36).

    A send in doubt is reconciled by reading the transfer (R37): any status but draft means that it was applied.
    """
    reconciliation = Reconciliation(
        get_transfer(transfer_id),
        lambda transfer: None if transfer.is_draft else transfer,
        warning=send_in_doubt_warning(transfer_id),
        # 409 invalid_state means "already sent" or "no files" (R37), so a draft with files contradicts it.
        contradicts=lambda transfer: transfer.is_draft and bool(transfer.files),
    )
    return Call(
        Operation.SEND, "POST", _path(transfer_id, "send"), _decode_sent_transfer, reconciliation=reconciliation
    )


def send_in_doubt_warning(transfer_id: str) -> str:
    """Return the warning for a send that could not be reconciled."""
    return f"Transfer {transfer_id} may nevertheless have been sent; the next attempt checks before it sends."


def read_events(*, cursor: int = 0, limit: int = MAX_EVENTS_PER_PAGE) -> Call[events.Page]:
    """GET /v1/events: the events after ``cursor``, oldest first (service-api.md, R40 to R44).

    A success uses up the account's one page a minute (R58).

    :param cursor: ``next_cursor`` of the previous page; 0 for the beginning.
    :param limit: 1 to 1,000.
    """
    return Call(
        Operation.EVENTS,
        "GET",
        "/v1/events",
        partial(events.read_page, cursor=cursor),
        params={"cursor": cursor, "limit": limit},
        api=Api.FEED,
        max_response_bytes=MAX_FEED_PAGE_BYTES,
    )


def probe_feed() -> Call[events.Page]:
    """GET /v1/events with an invalid cursor: 400 if the key is valid, else 401; does not use up the rate."""
    return replace(read_events(), params={"cursor": "none"})


def _path(*parts: str) -> str:
    # Ids are opaque and may come from users, so each is quoted as a whole and cannot lead to another path.
    if not all(isinstance(part, str) and part.strip(".") for part in parts):
        raise InvalidDelivery(f"not an id of the service: {parts!r}")
    try:
        return "/".join(("/v1/transfers", *(quote(part, safe="") for part in parts)))
    except UnicodeEncodeError:
        raise InvalidDelivery(f"not an id of the service: {parts!r}") from None


def _decoder(kind: type[T]) -> Callable[[Response], T]:
    return lambda response: msgspec.json.decode(response.body, type=kind)


def _decode_transfer(response: Response) -> Transfer:
    return decode_transfer(response.body)


def _decode_page(response: Response) -> TransferPage:
    return decode_page(response.body)


def _decode_time(response: Response) -> datetime | None:
    _decode_page(response)  # a sign-in page has a Date, too
    return parse_http_date(response.headers.get("date"))


def _decode_transfer_with_id(transfer_id: str, response: Response) -> Transfer:
    transfer = _decode_transfer(response)
    if transfer.id != transfer_id:
        raise MalformedResponse(f"get: the response shows another transfer than {transfer_id}")
    return transfer


def _decode_pickups(transfer_id: str, response: Response) -> Transfer:
    transfer = _decode_transfer_with_id(transfer_id, response)
    check_pickups(response.body)
    if has_contradictory_pickups(transfer):
        raise MalformedResponse(
            f"get: the response contradicts itself about who has picked up transfer {transfer.id}: it is "
            f"{transfer.status!r:.100}, and {transfer.picked_up_count} of {len(transfer.recipients)} recipients have"
        )
    return transfer


def _decode_sent_transfer(response: Response) -> Transfer:
    transfer = _decode_transfer(response)
    if transfer.is_draft:
        raise MalformedResponse(f"send: the response shows that {transfer.id} is a draft")
    return transfer


class _FilesEnvelope(msgspec.Struct):
    data: tuple[File, ...]


def _decode_files(response: Response) -> tuple[File, ...]:
    return msgspec.json.decode(response.body, type=_FilesEnvelope).data


def _decode_attach(response: Response) -> AttachResult:
    file = msgspec.json.decode(response.body, type=File)
    return AttachResult(file, response.status == 201, response.after_in_doubt_attempt)


def _decode_nothing(_: Response) -> None:
    return None
