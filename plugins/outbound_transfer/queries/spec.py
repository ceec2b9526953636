"""Queries and the names of their files: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from pathlib import PurePath
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.new_transfer import check_name

#: By the suffix of a file's name.
FORMATS: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".xlsx": "xlsx"}


class QuerySpec(NamedTuple):
    """One query, and the file that its result becomes; parameters are in the driver's style."""

    sql: str
    file_name: str
    file_format: str
    parameters: Sequence[Any] | Mapping[str, Any] | None = None


def parse_queries(given: Any, file_format: str | None = None) -> list[QuerySpec]:
    """Validate queries; ``file_format`` applies to those without their own."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InvalidDelivery("queries must be a list of at least one mapping with sql and file_name")
    queries = [_parse(one, file_format) for one in given]
    if len({query.file_name for query in queries}) < len(queries):
        raise InvalidDelivery("two queries have the same file_name, and the service would keep only the first result")
    return queries


def _parse(given: Any, file_format: str | None) -> QuerySpec:
    if not isinstance(given, Mapping) or not set(given) <= set(QuerySpec._fields):
        raise InvalidDelivery("a query is a mapping with sql and file_name, and optionally parameters and file_format")
    for field in ("sql", "file_name"):
        if not isinstance(text := given.get(field), str) or not text.strip():
            raise InvalidDelivery(f"{field} of a query must be a string, and not empty")
    if not isinstance(parameters := given.get("parameters"), Mapping | list | tuple | None):
        raise InvalidDelivery(f"parameters of a query must be a list or a mapping, not {type(parameters).__name__}")
    check_name(given["file_name"])
    used = format_of(given["file_name"], given.get("file_format") or file_format)
    return QuerySpec(given["sql"], given["file_name"], used, parameters)


def format_of(file_name: str, file_format: str | None) -> str:
    """Return a file's format; if none is given, by the suffix of its name."""
    names = ", ".join(dict.fromkeys(FORMATS.values()))
    if file_format and file_format not in FORMATS.values():
        raise InvalidDelivery(f"file_format must be one of {names}, not {file_format!r:.100}")
    if found := file_format or FORMATS.get(PurePath(file_name).suffix.lower()):
        return found
    raise InvalidDelivery(f"the suffix of {file_name!r:.300} is not one of {', '.join(FORMATS)}: set file_format")


def parse_zone(name: str) -> tzinfo:
    try:
        return UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidDelivery(f"timezone {name!r:.100} is not a time zone such as Europe/Berlin") from None
