"""The rows of a result: each driver's types as the few that every format can write, and their text. Pure."""

from __future__ import annotations

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, tzinfo
from decimal import Decimal
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from outbound_transfer.queries.errors import QueryFailed, ResultNotWritable

_UNCHANGED: Final = frozenset((NoneType, bool, int, float, str, bytes, date, msgspec.Raw))

#: Rows as one sequence of values for each column, all of one length.
Batch: TypeAlias = Sequence[Sequence[Any]]


class Result(NamedTuple):
    """Column names, of which two may be equal, and batches of normalized rows, none empty, to be read once."""

    columns: Sequence[str]
    batches: Iterable[Batch]


def check_names(names: Sequence[str]) -> None:
    """Reject a result without columns, or with two of the same name, ignoring case."""
    if not names:
        raise QueryFailed("the query returned no columns: write a statement that ends with a SELECT")
    counts = Counter(map(str.casefold, names))
    if repeated := [name for name in names if counts[name.casefold()] > 1]:
        raise ResultNotWritable(
            f"two columns are named {repeated[0]!r:.100}, perhaps in upper and lower case: give each a unique name "
            "with AS"
        )


def normalize_column(values: Sequence[Any], zone: tzinfo) -> Sequence[Any]:
    return values if _UNCHANGED.issuperset(map(type, values)) else [normalize(value, zone) for value in values]


def normalize(value: Any, zone: tzinfo) -> Any:
    """Return a value as one of the types that formats write, as its text if it has another; a timestamp in ``zone``.

    They are None, bool, int, float, str, bytes, Decimal, date, datetime, time without a zone, and :class:`msgspec.Raw`.
    """
    kind = type(value)
    if kind in _UNCHANGED:
        return value
    if kind is datetime:
        try:
            return value.astimezone(zone) if value.tzinfo else value
        except OverflowError:  # less than a day from the first or last that a timestamp can hold
            return value
    if kind is Decimal:  # every format has a way to write a float's NaN
        return value if value.is_finite() else math.nan if value.is_nan() else float(value)
    if kind is time:
        return value.isoformat() if value.tzinfo else value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)  # in the same order again
    if not isinstance(value, dict | list | tuple):
        return normalize(_plain(value), zone)
    return msgspec.Raw(_NESTED.encode(value))


def _plain(value: Any) -> Any:
    for method in ("tolist", "read"):  # arrays and numbers of numpy; large objects
        convert = getattr(value, method, None)
        if callable(convert) and type(plain := convert()) is not type(value):  # a long double of numpy stays one
            return plain
    kind: Any = type(value)
    if (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
        raise ResultNotWritable(f"a value of type {kind.__name__} has no text form: convert it in the query, with CAST")
    return str(value)


_NESTED: Final = msgspec.json.Encoder(enc_hook=_plain, decimal_format="string")

#: The text of a normalized value, by its type; of others, it is Python's own.
_TEXTS: Final[Mapping[type, Callable[[Any], str]]] = {
    NoneType: lambda _: "",
    bool: lambda value: str(value).lower(),
    Decimal: lambda value: format(value, "f"),
    **dict.fromkeys((datetime, date, time), lambda value: value.isoformat()),
    bytes: lambda value: b64encode(value).decode(),
    msgspec.Raw: lambda value: bytes(value).decode(),
}


def to_text(value: Any) -> str:
    """Return the text of a normalized value: ISO 8601 for dates and times, base64 for bytes, all digits of a number."""
    return _TEXTS.get(type(value), str)(value)
