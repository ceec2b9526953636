"""Values of a result: each driver's types as the few that every format can write, and their text. Pure."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from types import NoneType
from typing import Any, Final

import msgspec

from outbound_transfer.queries.errors import ResultNotWritable

#: Of these, values stay as they are: a column of nothing else is not copied.
_UNCHANGED: Final = frozenset((NoneType, bool, int, float, str, bytes, Decimal, date, timedelta))

JSON_ENCODER: Final = msgspec.json.Encoder(decimal_format="string")


def normalize_column(values: Sequence[Any], zone: tzinfo) -> Sequence[Any]:
    """Return the values of a column as the types that formats write; see :func:`normalize`."""
    kinds = set(map(type, values))
    if kinds <= _UNCHANGED and (Decimal not in kinds or all(map(_is_finite, values))):
        return values
    return [normalize(value, zone) for value in values]


def normalize(value: Any, zone: tzinfo) -> Any:
    """Return a value as one of the types that formats write.

    These are None, bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, list and dict.

    :param zone: what a timestamp with a zone is converted to. One without a zone stays as it is.
    :raises ResultNotWritable: an object has no text of its own, or two keys of a mapping have one.
    """
    match value:
        case None | bool():
            return value
        case int() | float() | str() | bytes() | Decimal() | timedelta():
            return value if type(value) in _UNCHANGED and _is_finite(value) else _base_value(value)
        case datetime():
            return _to_zone(value, zone)
        case date() | time():
            return value if type(value) in (date, time) else _base_date_or_time(value)
        case bytearray() | memoryview():
            return bytes(value)
        case uuid.UUID():
            return str(value)
        case Mapping():
            return _with_text_keys(value, zone)
        case Set():  # in an order of its own in each process
            return sorted((normalize(each, zone) for each in value), key=str)
        case list() | tuple():
            return [normalize(each, zone) for each in value]
    return normalize(_driver_value(value), zone)


def _driver_value(value: Any) -> Any:
    """Return what an object of a driver holds, or its text.

    :raises ResultNotWritable: it has no text of its own.
    """
    for method in ("tolist", "read"):  # arrays and numbers of numpy; large objects
        convert = getattr(value, method, None)
        if callable(convert) and type(plain := convert()) is not type(value):  # a long double of numpy stays one
            return plain
    kind: Any = type(value)
    if (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
        raise ResultNotWritable(f"a value of type {kind.__name__} has no text: convert it in the query, with CAST")
    return str(value)


def _is_finite(value: Any) -> bool:
    return not isinstance(value, Decimal) or value.is_finite()


def _base_value(value: Any) -> Any:
    """Return a value of a subclass, such as a driver's enumeration, as a value of its type.

    A Decimal that is infinite or no number becomes a float, which every format has a way to write.
    """
    if not _is_finite(value):
        return math.nan if value.is_nan() else float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, timedelta):
        return timedelta.__add__(value, timedelta())  # pendulum gives a negative duration other days and seconds
    kind: Any = next(kind for kind in (int, float, bytes, Decimal) if isinstance(value, kind))
    return kind(value)


def _base_date_or_time(value: date | time) -> date | time:
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    return time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)


def _to_zone(value: datetime, zone: tzinfo) -> datetime:
    plain = value if type(value) is datetime else datetime.combine(value, value.timetz())
    if plain.tzinfo is None:
        return plain
    try:
        return plain.astimezone(zone)
    except OverflowError:  # less than a day from the first or last that a timestamp can hold
        return plain


def _with_text_keys(mapping: Mapping[Any, Any], zone: tzinfo) -> dict[str, Any]:
    """:raises ResultNotWritable: two keys have one text."""
    normalized = {key if isinstance(key, str) else str(key): normalize(each, zone) for key, each in mapping.items()}
    if len(normalized) < len(mapping):
        raise ResultNotWritable("two keys of a mapping have the same text, as 1 and '1' have: rename one of them")
    return normalized


def to_text(value: Any) -> str:
    """Return the text of a normalized value: ISO 8601 for dates and times, base64 for bytes, JSON for what is nested.

    A number has all of its digits and no exponent if it is a Decimal. A duration is ``[-]HHH:MM:SS[.ffffff]``.
    """
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return _duration_text(value)
        case bytes():
            return to_json(value).decode()[1:-1]
        case list() | dict():
            return to_json(value).decode()
    return str(value)


def to_json(value: Any) -> bytes:
    """Return a normalized value as JSON: a Decimal is text, so that no reader rounds it.

    :raises ResultNotWritable: a text cannot be encoded.
    """
    with encodable_texts():
        return JSON_ENCODER.encode(value)


@contextmanager
def encodable_texts() -> Iterator[None]:
    """Encode texts in the block.

    :raises ResultNotWritable: instead of the error of a text that UTF-8 cannot encode, which quotes it.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise ResultNotWritable(f"a text cannot be encoded as UTF-8: {error.reason}") from None


def _duration_text(value: timedelta) -> str:
    seconds, sign = (value, "") if value >= timedelta() else (-value, "-")
    whole, micros = divmod(seconds // timedelta(microseconds=1), 1_000_000)
    fraction = f".{micros:06}" if micros else ""
    return f"{sign}{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{fraction}"
