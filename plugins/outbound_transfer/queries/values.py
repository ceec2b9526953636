"""The rows of a result: each driver's types as the few that every format can write, and their text. Pure."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from types import NoneType
from typing import Any, Final, TypeAlias

import msgspec

from outbound_transfer.queries.errors import ResultNotWritable

#: Of these, values stay as they are: a column of nothing else is not copied.
_UNCHANGED: Final = frozenset((NoneType, bool, int, float, str, bytes, date, timedelta))

JSON_ENCODER: Final = msgspec.json.Encoder(decimal_format="string")

#: Rows as one sequence of values for each column, all of one length.
Batch: TypeAlias = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Result:
    """A query's result; its rows can be read once.

    :ivar columns: their names, at least one; two may be equal.
    :ivar batches: none of them is empty. Their values are normalized; see :func:`normalize`.
    """

    columns: Sequence[str]
    batches: Iterable[Batch]


def normalize_column(values: Sequence[Any], zone: tzinfo) -> Sequence[Any]:
    """Return the values of a column as the types that formats write; see :func:`normalize`."""
    kinds = set(map(type, values))
    if kinds <= _UNCHANGED:
        return values
    conversions = {kind: _conversion_of(kind) for kind in kinds}
    return [conversions[type(value)](value, zone) for value in values]


def normalize(value: Any, zone: tzinfo) -> Any:
    """Return a value as one of the types that formats write.

    These are None, bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, list, dict and JSON as
    :class:`msgspec.Raw`. A value of a subclass, such as a driver's enumeration, becomes one of its type.

    :param zone: what a timestamp with a zone is converted to. One without a zone stays as it is.
    :raises ResultNotWritable: an object has no text of its own, or two keys of a mapping have one.
    """
    return _conversion_of(type(value))(value, zone)


def _conversion_of(kind: type) -> Callable[[Any, tzinfo], Any]:
    return next(_CONVERSIONS[each] for each in kind.__mro__ if each in _CONVERSIONS)


def _finite_or_float(value: Decimal, _: tzinfo) -> Decimal | float:
    if value.is_finite():
        return Decimal(value)
    return math.nan if value.is_nan() else float(value)  # which every format has a way to write


def _plain_date(value: date, _: tzinfo) -> date:
    return date(value.year, value.month, value.day)


def _plain_time(value: time, _: tzinfo) -> time:
    return time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)


def _in_zone(value: datetime, zone: tzinfo) -> datetime:
    plain = value if type(value) is datetime else datetime.combine(_plain_date(value, zone), value.timetz())
    try:
        return plain.astimezone(zone) if plain.tzinfo else plain
    except OverflowError:  # less than a day from the first or last that a timestamp can hold
        return plain


def _with_text_keys(mapping: Mapping[Any, Any], zone: tzinfo) -> dict[str, Any]:
    """:raises ResultNotWritable: two keys have one text."""
    normalized = {str(key): normalize(each, zone) for key, each in mapping.items()}
    if len(normalized) < len(mapping):
        raise ResultNotWritable("two keys of a mapping have the same text, as 1 and '1' have: rename one of them")
    return normalized


def _list(values: Iterable[Any], zone: tzinfo) -> list[Any]:
    return [normalize(each, zone) for each in values]


def _of_driver(value: Any, zone: tzinfo) -> Any:
    """Return what an object of a driver holds, or its text.

    :raises ResultNotWritable: it has no text of its own.
    """
    for method in ("tolist", "read"):  # arrays and numbers of numpy; large objects
        convert = getattr(value, method, None)
        if callable(convert) and type(plain := convert()) is not type(value):  # a long double of numpy stays one
            return normalize(plain, zone)
    kind: Any = type(value)
    if (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
        raise ResultNotWritable(f"a value of type {kind.__name__} has no text: convert it in the query, with CAST")
    return str(value)


#: How a value becomes one that formats write, by its type or the nearest that this is made from.
_CONVERSIONS: Final[Mapping[type, Callable[[Any, tzinfo], Any]]] = {
    **dict.fromkeys((NoneType, bool, msgspec.Raw), lambda value, _: value),
    int: lambda value, _: int(value),
    float: lambda value, _: float(value),
    str: lambda value, _: str.__str__(value),
    **dict.fromkeys((bytes, bytearray, memoryview), lambda value, _: bytes(value)),
    Decimal: _finite_or_float,
    timedelta: lambda value, _: timedelta.__add__(value, timedelta()),  # pendulum's negative ones have other days
    date: _plain_date,
    time: _plain_time,
    datetime: _in_zone,
    uuid.UUID: lambda value, _: str(value),
    **dict.fromkeys((dict, Mapping), _with_text_keys),
    **dict.fromkeys((list, tuple), _list),
    # Their order differs in each process.
    **dict.fromkeys((set, frozenset, Set), lambda value, zone: sorted(_list(value, zone), key=str)),
    object: _of_driver,
}


def to_text(value: Any) -> str:
    """Return the text of a normalized value: ISO 8601 for dates and times, base64 for bytes, JSON for what is nested.

    A number has all of its digits and no exponent if it is a Decimal. A duration is ``[-]HHH:MM:SS[.ffffff]``.
    """
    return _TEXTS.get(type(value), str)(value)


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


#: The text of a value, by its type; of others, it is Python's own.
_TEXTS: Final[Mapping[type, Callable[[Any], str]]] = {
    NoneType: lambda _: "",
    bool: lambda value: str(value).lower(),
    Decimal: lambda value: format(value, "f"),
    **dict.fromkeys((datetime, date, time), lambda value: value.isoformat()),
    timedelta: _duration_text,
    bytes: lambda value: to_json(value).decode()[1:-1],
    **dict.fromkeys((list, dict), lambda value: to_json(value).decode()),
    msgspec.Raw: lambda value: bytes(value).decode(),
}
