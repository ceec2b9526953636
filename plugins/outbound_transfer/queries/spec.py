"""What to query and what to name it: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import PurePath
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from outbound_transfer.client.content_disposition import check_name
from outbound_transfer.client.errors import InvalidDelivery

#: By the suffix of a file's name.
FORMATS: Final[Mapping[str, str]] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
}

_FIELDS: Final = frozenset(("sql", "file_name", "parameters", "file_format"))


@dataclass(frozen=True)
class QuerySpec:
    """One query, and the file that its result becomes.

    :ivar parameters: in the driver's style; None for none.
    """

    sql: str
    file_name: str
    file_format: str
    parameters: Sequence[Any] | Mapping[str, Any] | None = None


def parse_queries(given: Any, file_format: str | None = None) -> list[QuerySpec]:
    """Validate queries.

    :param given: mappings with ``sql`` and ``file_name``, and optionally ``parameters`` and ``file_format``.
    :param file_format: of those that have none of their own.
    :raises InvalidDelivery: one is not valid, or there is none, or the service would change the name of a file.
    """
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InvalidDelivery("queries is a list of at least one mapping with sql and file_name")
    queries = [_parse(one, file_format) for one in given]
    if len({query.file_name for query in queries}) < len(queries):
        raise InvalidDelivery("two queries have one file_name, and the service would keep only the first result")
    return queries


def _parse(given: Any, file_format: str | None) -> QuerySpec:
    if not isinstance(given, Mapping) or not set(given) <= _FIELDS:
        raise InvalidDelivery(
            'a query is a mapping with "sql" and "file_name", and optionally "parameters" and "file_format"'
        )
    sql, file_name, parameters = _text(given, "sql"), _text(given, "file_name"), given.get("parameters")
    if not isinstance(parameters, Mapping | list | tuple | None):
        raise InvalidDelivery(f"parameters of a query are a list or a mapping, not {type(parameters).__name__}")
    check_name(file_name)
    return QuerySpec(sql, file_name, format_of(file_name, given.get("file_format") or file_format), parameters)


def _text(given: Mapping[str, Any], field: str) -> str:
    text = given.get(field)
    if not isinstance(text, str) or not text.strip():
        raise InvalidDelivery(f"{field} of a query is text, and not empty")
    return text


def format_of(file_name: str, file_format: str | None) -> str:
    """Return the format of a file, by its name's suffix where it is not given.

    :raises InvalidDelivery: there is no such format, or no suffix that names one.
    """
    by_name = FORMATS.get(PurePath(file_name).suffix.lower())
    if not file_format and not by_name:
        raise InvalidDelivery(
            f"the suffix of {file_name!r:.300} names no format ({', '.join(FORMATS)}): set file_format"
        )
    if file_format and file_format not in FORMATS.values():
        names = ", ".join(dict.fromkeys(FORMATS.values()))
        raise InvalidDelivery(f"file_format is one of {names}, not {file_format!r:.100}")
    return file_format or str(by_name)


def parse_zone(name: str) -> tzinfo:
    """Return a time zone by its name.

    :raises InvalidDelivery: there is none of that name.
    """
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidDelivery(f"timezone {name!r:.100} is not a time zone, as Europe/Berlin is") from None
