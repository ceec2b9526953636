"""Decodes transfers and pages of transfers. An invalid transfer never hides the valid ones of its page."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import msgspec

from outbound_transfer.client.models import Transfer, TransferPage, UnreadableRow, is_valid_unicode

#: Longer numbers become floats: Python refuses to parse very long integers, and with them the whole text.
_MAX_DIGITS: Final = 300

# ``next_cursor`` is always there, and null on the last page (service-api.md, R14), so its absence says nothing.


class _Page(msgspec.Struct):
    data: tuple[Transfer, ...]
    next_cursor: str | None


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
    """Decode one page of the listing. Invalid rows are returned as ``unreadable``.

    :raises msgspec.DecodeError: it is not a page.
    """
    try:
        page = msgspec.json.decode(body, type=_Page)
        return TransferPage(page.data, page.next_cursor)
    except (msgspec.DecodeError, UnicodeDecodeError):
        rows = msgspec.convert(_parse_leniently(body), _Rows)
    if not is_valid_unicode(rows.next_cursor or ""):
        raise msgspec.ValidationError("next_cursor is not valid Unicode")
    decoded = [_decode_row(position, given) for position, given in enumerate(rows.data)]
    return TransferPage(
        tuple(row for row in decoded if isinstance(row, Transfer)),
        rows.next_cursor,
        tuple(row for row in decoded if isinstance(row, UnreadableRow)),
    )


def _parse_leniently(body: bytes) -> Any:
    """Parse JSON that msgspec refuses: invalid UTF-8, control characters in strings, unpaired surrogates."""
    try:
        return json.loads(body.decode(errors="replace"), strict=False, parse_int=_parse_integer)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _parse_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _decode_row(position: int, given: Any) -> Transfer | UnreadableRow:
    try:
        return _convert_transfer(given)
    except (msgspec.ValidationError, RecursionError) as error:
        fields = given if isinstance(given, dict) else {}
        return UnreadableRow(
            position,
            _readable_text(fields.get("id")) or "",
            str(error),  # the library's message names fields and types, never values
            subject=_readable_text(fields.get("subject")),
            addresses=_readable_addresses(fields.get("recipients")),
            sent_at=_readable_text(fields.get("sent_at")),
        )


def _readable_text(value: Any) -> str | None:
    return value if isinstance(value, str) and is_valid_unicode(value) else None


def _readable_addresses(recipients: Any) -> tuple[str, ...] | None:
    """Return the addresses of all recipients; None if one of them cannot be read."""
    if not isinstance(recipients, list):
        return None
    addresses = [_readable_text(each.get("email")) if isinstance(each, dict) else None for each in recipients]
    readable = tuple(each for each in addresses if each is not None)
    return readable if len(readable) == len(addresses) else None


def _convert_transfer(given: Any) -> Transfer:
    transfer = msgspec.convert(_replace_lone_surrogates(given), Transfer)
    if transfer.id != given["id"]:  # a repaired id could belong to another transfer
        raise msgspec.ValidationError("the id is not valid Unicode")
    return transfer


def _replace_lone_surrogates(value: Any) -> Any:
    """Replace unpaired surrogates, which JSON escapes can express and UTF-8 cannot."""
    if isinstance(value, str):
        return value if is_valid_unicode(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_replace_lone_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {_replace_lone_surrogates(name): _replace_lone_surrogates(each) for name, each in value.items()}
    return value
