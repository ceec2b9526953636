"""Every endpoint of the service as a pure function that returns a call (service.md, Endpoints)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from outbound_transfer.protocol import feed
from outbound_transfer.protocol.errors import InvalidDelivery, MalformedAnswer
from outbound_transfer.protocol.exchange import Answer, Api, Call, Operation, Settlement, Upload
from outbound_transfer.protocol.models import File, NewTransfer, Transfer, TransferPage
from outbound_transfer.protocol.reading import read_page, read_transfer

T = TypeVar("T")

#: A feed page of 1,000 events is read whole, so that it lands whole or not at all.
MAX_FEED_PAGE: Final = 256 * 1024 * 1024

MAX_PAGE: Final = 100
MAX_EVENTS: Final = 1_000


class Attached(NamedTuple):
    """What attaching gave: the service's record, and whether it is of this upload (not of an earlier file).

    :ivar is_new: attached by just this try (201); otherwise the name was there (200).
    :ivar after_unclear: an earlier try of the upload may have attached it.
    """

    file: File
    is_new: bool
    after_unclear: bool


def create_transfer(new: NewTransfer, *, drafts: int = 2) -> Call[Transfer]:
    """POST /v1/transfers: a draft.

    Drafts are never listed, so nobody can tell whether an unclear create took effect. Another one is risked only once
    the service answers again.

    :param drafts: creates that may be made in all, where each may leave a draft that nothing leads to.
    """
    return Call(
        Operation.CREATE,
        "POST",
        "/v1/transfers",
        _transfer,
        body=msgspec.json.encode(new),
        secrets=new.secrets,
        settle=Settlement(list_transfers(limit=1), lambda _: None, doubt=""),
        unclear_tries=drafts,
    )


def list_transfers(*, limit: int = MAX_PAGE, status: str = "all", cursor: str | None = None) -> Call[TransferPage]:
    """GET /v1/transfers: one page of sent transfers, newest first; drafts are never listed."""
    params: dict[str, str | int] = {"limit": limit, "status": status}
    if cursor is not None:
        params["cursor"] = cursor
    return Call(Operation.LIST, "GET", "/v1/transfers", _page, params=params)


def get_transfer(transfer_id: str) -> Call[Transfer]:
    """GET /v1/transfers/{transfer_id}: a draft or a sent transfer, with its files."""
    return Call(Operation.GET, "GET", _path(transfer_id), partial(_transfer_of, transfer_id))


def attach_file(transfer_id: str, upload: Upload) -> Call[Attached]:
    """POST /v1/transfers/{transfer_id}/files: raw bytes; 200 instead of 201 where the name is attached already."""
    return Call(Operation.ATTACH, "POST", _path(transfer_id, "files"), _attached, upload=upload)


def list_files(transfer_id: str) -> Call[tuple[File, ...]]:
    """GET /v1/transfers/{transfer_id}/files: every file in one answer."""
    return Call(Operation.LIST_FILES, "GET", _path(transfer_id, "files"), _files)


def get_file(transfer_id: str, file_id: str) -> Call[File]:
    """GET /v1/transfers/{transfer_id}/files/{file_id}."""
    return Call(Operation.GET_FILE, "GET", _path(transfer_id, "files", file_id), _json(File))


def remove_file(transfer_id: str, file_id: str) -> Call[None]:
    """DELETE /v1/transfers/{transfer_id}/files/{file_id}: from a draft only."""
    return Call(Operation.REMOVE, "DELETE", _path(transfer_id, "files", file_id), _nothing)


def discard_transfer(transfer_id: str) -> Call[None]:
    """DELETE /v1/transfers/{transfer_id}: a draft only."""
    return Call(Operation.DISCARD, "DELETE", _path(transfer_id), _nothing)


def send_transfer(transfer_id: str) -> Call[Transfer]:
    """POST /v1/transfers/{transfer_id}/send: bills and emails, once.

    A failed send is settled by reading the transfer (rule 2): any status but draft means that it landed.
    """
    settle = Settlement(
        get_transfer(transfer_id),
        lambda transfer: None if transfer.is_draft else transfer,
        doubt=doubt_of_send(transfer_id),
        # A draft without files is refused with the same code (rule 2); one with files is not.
        contradicts=lambda transfer: transfer.is_draft and bool(transfer.files),
    )
    return Call(Operation.SEND, "POST", _path(transfer_id, "send"), _sent, settle=settle)


def doubt_of_send(transfer_id: str) -> str:
    """What to tell a person while nobody can know whether a send took effect."""
    return f"Transfer {transfer_id} may have been sent all the same; the next try looks before it sends."


def read_events(*, cursor: int = 0, limit: int = MAX_EVENTS) -> Call[feed.Page]:
    """GET /v1/events: the events after ``cursor``, oldest first. A success spends the account's minute."""
    return Call(
        Operation.EVENTS,
        "GET",
        "/v1/events",
        partial(feed.read_page, cursor=cursor),
        params={"cursor": cursor, "limit": limit},
        api=Api.FEED,
        max_answer=MAX_FEED_PAGE,
    )


def probe_feed() -> Call[feed.Page]:
    """GET /v1/events with an invalid cursor: 400 where the key is good, 401 where it is not; spends nothing."""
    return replace(read_events(), params={"cursor": "none"})


def _path(*parts: str) -> str:
    # An id is opaque and may come from outside, so it is quoted whole: none may reach another path.
    if not all(isinstance(part, str) and part.strip(".") for part in parts):
        raise InvalidDelivery(f"not an id of the service: {parts!r}")
    try:
        return "/".join(("/v1/transfers", *(quote(part, safe="") for part in parts)))
    except UnicodeEncodeError:
        raise InvalidDelivery(f"not an id of the service: {parts!r}") from None


def _json(kind: type[T]) -> Callable[[Answer], T]:
    return lambda answer: msgspec.json.decode(answer.body, type=kind)


def _transfer(answer: Answer) -> Transfer:
    return read_transfer(answer.body)


def _page(answer: Answer) -> TransferPage:
    return read_page(answer.body)


def _transfer_of(transfer_id: str, answer: Answer) -> Transfer:
    transfer = _transfer(answer)
    if transfer.id != transfer_id:
        raise MalformedAnswer(f"get: the answer is of another transfer than {transfer_id}")
    return transfer


def _sent(answer: Answer) -> Transfer:
    transfer = _transfer(answer)
    if transfer.is_draft:
        raise MalformedAnswer(f"send: the answer says that {transfer.id} is a draft")
    return transfer


class _Files(msgspec.Struct):
    data: tuple[File, ...]


def _files(answer: Answer) -> tuple[File, ...]:
    return msgspec.json.decode(answer.body, type=_Files).data


def _attached(answer: Answer) -> Attached:
    file = msgspec.json.decode(answer.body, type=File)
    return Attached(file, answer.status == 201, answer.after_unclear)


def _nothing(_: Answer) -> None:
    return None
