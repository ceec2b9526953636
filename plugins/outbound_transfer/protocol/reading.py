"""Reading the service's transfers: one that is not as documented never hides the others."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.models import Transfer, TransferPage, Unreadable, is_unicode

#: Digits of a number that are read as one; Python refuses much longer ones, and with them all that is around them.
_MOST_DIGITS: Final = 300


class _Page(msgspec.Struct):
    data: tuple[Transfer, ...]
    next_cursor: str | None = None


class _Rows(msgspec.Struct):
    data: list[Any]
    next_cursor: str | None = None


def read_transfer(body: bytes) -> Transfer:
    """One transfer. What no text can hold, such as half a character, is replaced in it.

    :raises msgspec.DecodeError: it is none.
    """
    try:
        return msgspec.json.decode(body, type=Transfer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _transfer(_parsed(body))


def read_page(body: bytes) -> TransferPage:
    """One page of the listing; rows that are no transfers are told apart.

    :raises msgspec.DecodeError: it is none.
    """
    try:
        page = msgspec.json.decode(body, type=_Page)
        return TransferPage(page.data, page.next_cursor)
    except (msgspec.DecodeError, UnicodeDecodeError):
        rows = msgspec.convert(_parsed(body), _Rows)
    read = [_row(position, given) for position, given in enumerate(rows.data)]
    return TransferPage(
        tuple(row for row in read if isinstance(row, Transfer)),
        rows.next_cursor,
        tuple(row for row in read if isinstance(row, Unreadable)),
    )


def _parsed(body: bytes) -> Any:
    """The JSON of ``body``, read more kindly than msgspec does."""
    try:
        return json.loads(body.decode(errors="replace"), strict=False, parse_int=_integer)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _row(position: int, given: Any) -> Transfer | Unreadable:
    try:
        return _transfer(given)
    except (msgspec.ValidationError, RecursionError) as error:
        transfer_id = given.get("id") if isinstance(given, dict) else None
        named = transfer_id if isinstance(transfer_id, str) and is_unicode(transfer_id) else ""
        # The library's text names fields and types, never values.
        return Unreadable(position, named, str(error))


def _transfer(given: Any) -> Transfer:
    transfer = msgspec.convert(_mended(given), Transfer)
    if transfer.id != given["id"]:  # under a mended id it would be another transfer
        raise msgspec.ValidationError("the id is not valid Unicode")
    return transfer


def _mended(value: Any) -> Any:
    """The same without the halves of characters that JSON's escapes can name and no text can hold."""
    if isinstance(value, str):
        return value if is_unicode(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(one) for name, one in value.items()}
    return value
