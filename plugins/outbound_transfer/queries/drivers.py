"""Cursors whose values are those of the database, where its driver would make others of them.

A value that Python has no exact type for comes as the text that the database writes: an interval with months, a date
before Christ or after the year 9999, ``infinity``, a zero date of MySQL, the digits of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from functools import partial
from typing import Any, Final

import msgspec

from outbound_transfer.queries.errors import QueryFailed, ResultNotWritable

#: Dates, times, and intervals of days and less, as PostgreSQL writes them by default: Python has exact types for these.
_EXACT: Final = re.compile(
    r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?([-+][\d:]+)?)?"
    r"|([-+]?\d+ days?)? ?([-+]?\d+:\d\d:\d\d(\.\d+)?)?"
)

_TIMES: Final = ("date", "timestamp", "timestamptz", "interval")

#: Types of PostgreSQL: their numbers, and those of their arrays, with what psycopg2 reads them by.
_PSYCOPG2_TIMES: Final = {
    "PYDATE": (1082, 1182),
    "PYDATETIME": (1114, 1115),
    "PYDATETIMETZ": (1184, 1185),
    "PYINTERVAL": (1186, 1187),
}
_JSON: Final = {"json": (114, 199), "jsonb": (3802, 3807)}

#: What the name of a type has that is a date or a timestamp, or holds some: a list, a struct or a map.
_DUCKDB_DATES: Final = re.compile("DATE|TIMESTAMP")

#: What DuckDB's driver takes for infinity, and so does not tell from it.
_DUCKDB_INFINITE: Final = frozenset((date.min, date.max, datetime.min, datetime.max))

#: Types of which it drops months or nanoseconds.
_DUCKDB_CHANGED: Final = re.compile("INTERVAL|TIMESTAMP_NS")


def open_cursor(connection: Any) -> Any:
    """Open a cursor on a new connection. Its rows are tuples, and stay at the server where the driver can do that.

    :raises QueryFailed: the driver is not one that this package knows how to use.
    """
    open_it = _OPENERS.get(_driver_of(connection))
    return open_it(connection) if open_it else connection.cursor()


def check_exact(connection: Any, description: Sequence[Any], columns: Sequence[Sequence[Any]]) -> None:
    """Refuse values that the driver has changed, and that nothing else shows.

    :param description: of the cursor.
    :raises ResultNotWritable: there is one, or may be.
    """
    if _driver_of(connection) != "duckdb":
        return
    for (name, kind, *_), values in zip(description, columns, strict=True):
        is_infinite = _DUCKDB_DATES.search(str(kind)) and not _DUCKDB_INFINITE.isdisjoint(_scalars(values))
        if is_infinite or _DUCKDB_CHANGED.search(str(kind)):
            raise ResultNotWritable(
                f"DuckDB's driver changes values such as those of column {name!r:.100} (months of an interval, "
                "nanoseconds, infinity, the first and the last day of Python): CAST it AS VARCHAR in the query"
            )


def _scalars(value: Any) -> Iterator[Any]:
    """Yield the values in a list or mapping, of any depth; keys are among them."""
    if isinstance(value, Mapping):
        yield from _scalars([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _scalars(part)
    else:
        yield value


def _driver_of(connection: Any) -> str:
    """Return the package of a connection's class."""
    return type(connection).__module__.lstrip("_").partition(".")[0]


def _exactly(text: str, convert: Callable[[], Any]) -> Any:
    if _EXACT.fullmatch(text):
        with suppress(Exception):  # a year after 9999, for example
            return convert()
    return text


def _json(data: bytes | str) -> msgspec.Raw:
    """Return JSON in one line, with the digits that it has."""
    return msgspec.Raw(msgspec.json.format(data, indent=-1))


def _open_psycopg(connection: Any) -> Any:
    from psycopg.adapt import Loader
    from psycopg.pq import Format
    from psycopg.rows import tuple_row

    class JsonLoader(Loader):
        def load(self, data: Any) -> msgspec.Raw:
            return _json(bytes(data))

    def exact(base: Any) -> type[Loader]:
        class ExactLoader(Loader):
            def __init__(self, oid: int, context: Any = None) -> None:
                super().__init__(oid, context)
                self._base = base(oid, context)

            def load(self, data: Any) -> Any:
                return _exactly(bytes(data).decode(), partial(self._base.load, data))

        return ExactLoader

    connection.autocommit = False  # a cursor of the server lives in a transaction
    adapters = connection.adapters
    for name in _TIMES:
        adapters.register_loader(name, exact(adapters.get_loader(adapters.types[name].oid, Format.TEXT)))
    for name in _JSON:
        adapters.register_loader(name, JsonLoader)
    return connection.cursor("outbound_transfer", row_factory=tuple_row)


def _open_psycopg2(connection: Any) -> Any:
    from psycopg2 import extensions

    def register(name: str, oids: tuple[int, int], convert: Callable[[str, Any], Any]) -> None:
        kind = extensions.new_type(oids[:1], name, lambda text, cursor: text and convert(text, cursor))
        extensions.register_type(kind, connection)
        extensions.register_type(extensions.new_array_type(oids[1:], f"{name}[]", kind), connection)

    def exact(base: Any, text: str, cursor: Any) -> Any:
        return _exactly(text, partial(base, text, cursor))

    for name, oids in _PSYCOPG2_TIMES.items():
        register(name, oids, partial(exact, getattr(extensions, name)))
    for name, oids in _JSON.items():
        register(name, oids, lambda text, _: _json(text))
    connection.autocommit = False
    return connection.cursor("outbound_transfer", cursor_factory=extensions.cursor)


def _open_mysqlclient(connection: Any) -> Any:
    from MySQLdb.constants import FIELD_TYPE
    from MySQLdb.cursors import SSCursor

    connection.set_character_set("utf8mb4")  # the server writes "?" for what the session's character set has not
    for kind in (FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIME):
        connection.converter[kind] = partial(_or_text, connection.converter[kind])
    return connection.cursor(SSCursor)


def _or_text(convert: Callable[[str], Any], text: str) -> Any:
    """Return a date of MySQL; its text if it is none, of which the driver makes NULL."""
    value = convert(text)
    return text if value is None else value


def _refuse_mysql_connector(_: Any) -> Any:
    raise QueryFailed(
        "The connection's driver is mysql-connector-python, and this package knows mysqlclient: take the field client "
        "out of the connection's extra"
    )


#: By the package of the connection's class.
_OPENERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "psycopg": _open_psycopg,
    "psycopg2": _open_psycopg2,
    "MySQLdb": _open_mysqlclient,
    "mysql": _refuse_mysql_connector,
}
