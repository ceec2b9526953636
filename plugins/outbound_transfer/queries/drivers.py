"""Cursors whose values are those of the database, where its driver would make others of them.

A value that Python has no exact type for comes as the text that the database writes: an interval with months, a date
before Christ or after the year 9999, ``infinity``, a zero date of MySQL, the digits of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from outbound_transfer.queries.errors import QueryFailed, ResultNotWritable

#: An interval of PostgreSQL without months and years, as it writes one by default.
_INTERVAL: Final = re.compile(r"(?:([-+]?\d+) days? ?)?(?:([-+]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?")

#: What the name of a type of DuckDB has that is a date or a timestamp, or holds some: a list, a struct or a map.
_DUCKDB_DATES: Final = re.compile("DATE|TIMESTAMP")

#: What DuckDB's driver takes for infinity, and so does not tell from it.
_DUCKDB_INFINITE: Final = frozenset((date.min, date.max, datetime.min, datetime.max))

#: Types of which it drops months or nanoseconds.
_DUCKDB_CHANGED: Final = re.compile("INTERVAL|TIMESTAMP_NS")

#: The number of a type whose digits the server drops as it writes them (``FIELD_TYPE.FLOAT``).
_MYSQL_FLOAT: Final = 4


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
    driver = _driver_of(connection)
    if driver == "MySQLdb" and (rounded := [name for name, kind, *_ in description if kind == _MYSQL_FLOAT]):
        raise ResultNotWritable(
            f"MySQL rounds a FLOAT such as column {rounded[0]!r:.100} to six digits: CAST it AS DOUBLE in the query"
        )
    if driver != "duckdb":
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


def _or_text(convert: Callable[[str], Any], text: str | None, *_: object) -> Any:
    """Return a value by its text; the text itself if Python has no exact type for it, or it is NULL."""
    if text is None:
        return None
    try:
        value = convert(text)
    except Exception:  # a year after 9999, for example
        return text
    return text if value is None else value


def _interval(text: str) -> timedelta:
    days, sign, hours, minutes, seconds, fraction = _INTERVAL.fullmatch(text).groups()  # type: ignore[union-attr]
    micros = int((fraction or "").ljust(6, "0"))
    time = timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=int(seconds or 0), microseconds=micros)
    return timedelta(int(days or 0)) + (-time if sign == "-" else time)


def _json(text: str) -> msgspec.Raw:
    """Return JSON in one line, with the digits that it has."""
    return msgspec.Raw(msgspec.json.format(text, indent=-1))


#: Of PostgreSQL: the numbers of a type and of its arrays, and how a value comes from its text.
_POSTGRES: Final[Sequence[tuple[int, int, Callable[[str], Any]]]] = (
    (1082, 1182, date.fromisoformat),
    (1114, 1115, datetime.fromisoformat),
    (1184, 1185, datetime.fromisoformat),
    (1186, 1187, _interval),
    (114, 199, _json),
    (3802, 3807, _json),
)


def _open_psycopg(connection: Any) -> Any:
    from psycopg.adapt import Loader
    from psycopg.rows import tuple_row

    encoding = connection.info.encoding

    def loader_of(convert: Callable[[str], Any]) -> type[Loader]:
        class TextLoader(Loader):
            def load(self, data: Any) -> Any:
                return _or_text(convert, str(data, encoding))

        return TextLoader

    connection.autocommit = False  # a cursor of the server lives in a transaction
    for number, _, convert in _POSTGRES:
        connection.adapters.register_loader(number, loader_of(convert))
    return connection.cursor("outbound_transfer", row_factory=tuple_row)


def _open_psycopg2(connection: Any) -> Any:
    from psycopg2 import extensions

    for number, of_arrays, convert in _POSTGRES:
        kind = extensions.new_type((number,), str(number), partial(_or_text, convert))
        extensions.register_type(kind, connection)
        extensions.register_type(extensions.new_array_type((of_arrays,), str(of_arrays), kind), connection)
    connection.autocommit = False
    return connection.cursor("outbound_transfer", cursor_factory=extensions.cursor)


def _open_mysqlclient(connection: Any) -> Any:
    from MySQLdb.constants import FIELD_TYPE
    from MySQLdb.cursors import SSCursor

    connection.set_character_set("utf8mb4")  # the server writes "?" for what the session's character set has not
    for kind in (FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIME):
        connection.converter[kind] = partial(_or_text, connection.converter[kind])  # which makes NULL of a zero date
    return connection.cursor(SSCursor)


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
