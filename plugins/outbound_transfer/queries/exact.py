"""Queries of PostgreSQL and DuckDB, in which the database writes what Python has no exact type for, as text.

That is an interval, a date before Christ or after the year 9999, ``infinity``, nanoseconds.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, tzinfo
from types import SimpleNamespace
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import msgspec

from outbound_transfer.queries.formats.csv import FORMULA, NUMBER, SIGNS, escape_formula
from outbound_transfer.queries.values import check_names

Parser: TypeAlias = Callable[[str], Any]


def _json(text: str) -> msgspec.Raw:  # in one line, with the digits that it has
    return msgspec.Raw(msgspec.json.format(text, indent=-1))


def _from_json(text: str) -> Any:
    return msgspec.json.decode(text) if text.startswith('"') else _json(text)


def parsed(text: Any, parse: Parser) -> Any:
    """Return a value by its text; the text itself if Python has no exact type for it."""
    try:
        return None if text is None else parse(text)
    except Exception:  # a year after 9999, for example
        return text


class _Kind(NamedTuple):
    """How a type is read: by which expression in CSV, what makes a value of its text, whether it may have formulas."""

    csv: str
    parse: Parser | None = None
    is_text: bool = False


_TEXT: Final = "CAST({c} AS text)"
_AS_JSON: Final = "CAST(to_json({c}) AS text)"

#: Of PostgreSQL: dates and times in ISO 8601 whatever the session's style; JSON of arrays and records; other texts.
_PLAIN: Final = "(to_json({c}) #>> '{{}}')"

#: By a type's number in PostgreSQL, or the pattern of its name in DuckDB.
_KINDS: Final[Mapping[str, _Kind]] = {
    r"20|21|23|26|700|701|1700|[A-Z]*INT(EGER)?|BIGNUM|DECIMAL\(.*\)|FLOAT|DOUBLE": _Kind("{c}"),
    "16|BOOLEAN": _Kind("{plain}"),
    "17": _Kind("translate(encode({c}, 'base64'), '\n', '')"),
    "BLOB": _Kind("to_base64({c})"),
    "1082|DATE": _Kind("{plain}", date.fromisoformat),
    "1083|TIME": _Kind("{plain}", time.fromisoformat),
    "1114|TIMESTAMP(_S|_MS)?": _Kind("{plain}", datetime.fromisoformat),
    "1184|TIMESTAMP WITH TIME ZONE": _Kind("{in_zone}", datetime.fromisoformat),
    "1186|1266|INTERVAL|TIME[A-Z_ ]*": _Kind("{plain}", str),
    "114|3802|JSON": _Kind(_TEXT, _json, is_text=True),
    "1042": _Kind("{plain}", is_text=True),
    r".*\]|(STRUCT|MAP|UNION)\(.*": _Kind(_AS_JSON, _json, is_text=True),
    "25|1043|[^0-9].*": _Kind(_TEXT, is_text=True),
    ".*": _Kind("{plain}", _from_json, is_text=True),
}


def driver_of(connection: Any) -> str:
    return type(connection).__module__.lstrip("_").partition(".")[0]


def is_exact(connection: Any) -> bool:
    """Whether a connection can have an :class:`ExactQuery`. Redshift, an old PostgreSQL, cannot."""
    driver = driver_of(connection)
    return driver == "duckdb" or (driver in ("psycopg", "psycopg2") and connection.info.server_version >= 90_400)


def can_copy(connection: Any) -> bool:
    """Whether it can :meth:`.ExactQuery.copy`: in other encodings, PostgreSQL cannot name each sign of a formula."""
    is_duckdb = driver_of(connection) == "duckdb"
    return is_exact(connection) and (is_duckdb or connection.info.parameter_status("server_encoding") == "UTF8")


class ExactQuery:
    """A query on an open connection for which :func:`is_exact` holds."""

    def __init__(self, connection: Any, sql: str, parameters: Any, zone: tzinfo) -> None:
        self._driver, self._cursor, self._zone = driver_of(connection), connection, zone
        sql, self._arguments, fence = sql.strip("\ufeff; \t\r\n"), [parameters] if parameters else [], ""
        if self._driver == "duckdb":  # which gives the second of two columns of one name another, but here
            described = connection.execute(f"DESCRIBE (\n{sql}\n)", *self._arguments).fetchall()
        else:
            if self._driver == "psycopg":
                from psycopg import ClientCursor

                self._cursor = ClientCursor(connection)
            else:
                connection.set_client_encoding("UTF8")
                self._cursor = connection.cursor()
            if parameters:  # COPY takes none
                bound, self._arguments = self._cursor.mogrify(sql, parameters), []
                sql = bound.decode() if isinstance(bound, bytes) else bound
            fence = " OFFSET 0"  # or PostgreSQL computes a column each time that it is named
            self._cursor.execute(f"SELECT * FROM (\n{sql}\n) AS s LIMIT 0")  # noqa: S608
            described = self._cursor.description or ()
        self._source = f"(SELECT * FROM (\n{sql}\n) AS s{fence}) AS q"  # noqa: S608
        self._names = [str(column[0]) for column in described]
        self._kinds = [
            next(kind for name, kind in _KINDS.items() if re.fullmatch(name, str(type_), re.DOTALL))
            for _, type_, *_ in described
        ]

    def selection(self) -> tuple[str, list[Any], list[Parser | None]]:
        """Return a statement, the arguments of its execution, and what makes a column's values of its texts."""
        parsers = [kind.parse for kind in self._kinds]
        texts = [_AS_JSON if kind.parse is _from_json else kind.csv if kind.parse else "{c}" for kind in self._kinds]
        values = [self._filled(text, number) for number, text in enumerate(texts)]
        return self._select(values, self._names), self._arguments, parsers

    def copy(self, file: BinaryIO, *, limit: int | None, escape_formulas: bool) -> int:
        """Let the database write at most so many rows as CSV by COPY; return their number."""
        check_names(self._names)
        titles, values = self._names, [self._filled(kind.csv, number) for number, kind in enumerate(self._kinds)]
        if escape_formulas:
            titles = list(map(escape_formula, titles))
            pairs = zip(values, self._kinds, strict=True)
            values = [self._escaped(value) if kind.is_text else value for value, kind in pairs]
        if len(values) == 1:
            values = [f"coalesce(CAST({values[0]} AS text), '')"]  # in quotes, as readers skip an empty line
        query = self._select(values, titles) + ("" if limit is None else f" LIMIT {limit}")
        if self._driver == "duckdb":
            to = rf"'/dev/fd/{file.fileno()}' (FORMAT csv, HEADER, NEW_LINE '\r\n', USE_TMP_FILE false)"
            self._cursor.execute("SET threads = 1")  # more would hold hundreds of MB, to keep the rows' order
            row = self._cursor.execute(f"COPY ({query}) TO {to}", *self._arguments).fetchone()
            if row:
                return int(row[0])
            file.seek(0)  # DuckDB does not say how many, if there is a PIVOT
            return sum(1 for _ in csv.reader(line.decode() for line in file)) - 1
        statement = f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER, ENCODING 'UTF8')"

        def write(row: Any) -> None:  # one at a time, with PostgreSQL's own end of a line
            file.writelines((row[:-1], b"\r\n"))

        if self._driver == "psycopg2":
            self._cursor.copy_expert(statement, SimpleNamespace(write=write))
        else:
            with self._cursor.copy(statement) as rows:
                for row in rows:
                    write(row)
        return int(self._cursor.rowcount)

    def _select(self, values: Sequence[str], titles: Sequence[str]) -> str:
        quoted = ['"' + title.replace('"', '""') + '"' for title in titles]
        selected = ", ".join(f"{value} AS {title}" for value, title in zip(values, quoted, strict=True))
        aliases = ", ".join(f"c{number}" for number in range(len(titles)))
        return f"SELECT {selected} FROM {self._source} ({aliases})"  # noqa: S608

    def _filled(self, expression: str, number: int) -> str:
        column, plain = f"q.c{number}", _TEXT if self._driver == "duckdb" else _PLAIN
        local, utc = f"timezone('{self._zone}', {column})", f"timezone('UTC', {column})"
        gap = f"CAST(TIME '00:00' + (greatest({local}, {utc}) - least({local}, {utc})) AS text)"
        offset = f"CASE WHEN {local} < {utc} THEN '-' ELSE '+' END || regexp_replace({gap}, ':00$', '')"
        offset = "'+00:00'" if str(self._zone) == "UTC" else offset
        is_common = f"{column} BETWEEN '0001-01-02' AND '9999-12-30'"
        in_zone = f"CASE WHEN {is_common} THEN {plain.format(c=local)} || {offset} ELSE {plain.format(c=column)} END"
        return expression.format(c=column, plain=plain.format(c=column), in_zone=in_zone)

    def _escaped(self, text: str) -> str:  # does what escape_formula does
        formula = FORMULA.replace("\x01", r"\x00") if self._driver == "duckdb" else FORMULA  # PostgreSQL has no NUL
        cells = f"regexp_replace({text}, '{formula}', E'\\\\1''\\\\2', 'g')"
        signs = f"[\t\r\n{SIGNS}]"  # most texts have none, which costs little to find out
        has_none = f"NOT regexp_matches({text}, '{signs}')" if self._driver == "duckdb" else f"{text} !~ '{signs}'"
        return (
            f"CASE WHEN {has_none} OR {text} SIMILAR TO '{NUMBER}' THEN {text} "
            f"ELSE regexp_replace({cells}, '^([\t\r\n])', E'''\\\\1') END"
        )
