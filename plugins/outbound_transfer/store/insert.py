"""Inserts the rows whose key is new, in bulk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from outbound_transfer.store.types import BYTES

Row: TypeAlias = Mapping[str, Any]

#: Bytes of JSON in one statement.
_BATCH_SIZE: Final = 4_000_000

#: Keys in one query.
MAX_KEYS: Final = 500

#: What reads rows of texts from one JSON text, and decodes bytes, by database.
_FROM_JSON: Final = {
    "postgresql": "json_to_recordset(%s::json) AS r({fields})",
    "duckdb": "(SELECT unnest(from_json(?, '[{{{shape}}}]')) AS r)",
}
_BYTES: Final = {"postgresql": "decode({}, 'base64')", "duckdb": "from_base64({})"}

_encode: Final = msgspec.json.Encoder().encode


def insert_new(tx: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> int:
    """Insert the rows whose key is not in the table, the first of each key; return their number.

    PostgreSQL and DuckDB read them from JSON, which costs a tenth of the time of values; the others take the driver's
    ``executemany``. No count depends on what a driver of MySQL counts.

    :param rows: values by name of column, times with a zone; all with the same names.
    """
    if tx.dialect.name in _FROM_JSON:
        return sum(_insert_batch(tx, table, batch) for batch in _batches(rows))
    if tx.dialect.name == "sqlite":
        key = ", ".join(tx.dialect.identifier_preparer.quote(column.name) for column in table.primary_key)
        return _insert_values(tx, table, rows, f"ON CONFLICT ({key}) DO NOTHING")
    # Neither IGNORE nor ON DUPLICATE KEY UPDATE: these skip what any unique index refuses.
    new = _select_new(tx, table, rows)
    _insert_values(tx, table, new)
    return len(new)


def _insert_values(tx: sa.Connection, table: sa.Table, rows: Sequence[Row], end: str = "") -> int:
    """Insert rows with the driver's ``executemany``; SQLAlchemy's own takes several times as long."""
    if not rows:
        return 0
    preparer, mark = tx.dialect.identifier_preparer, "?" if tx.dialect.name == "sqlite" else "%s"
    processors = [table.c[name].type.bind_processor(tx.dialect) for name in rows[0]]
    columns = zip(*(row.values() for row in rows), strict=True)
    values = [map(process, each) if process else each for process, each in zip(processors, columns, strict=True)]
    names, marks = ", ".join(map(preparer.quote, rows[0])), ", ".join(mark for _ in rows[0])
    statement = f"INSERT INTO {preparer.format_table(table)} ({names}) VALUES ({marks}) {end}"  # noqa: S608
    return tx.exec_driver_sql(statement, list(zip(*values, strict=True))).rowcount


def _insert_batch(tx: sa.Connection, table: sa.Table, batch: str | Row) -> int:
    key = list(table.primary_key)
    if not isinstance(batch, str):
        insert = postgresql.insert(table).on_conflict_do_nothing(index_elements=key)
        return tx.execute(insert.execution_options(preserve_rowcount=True), batch).rowcount
    quote, database = tx.dialect.identifier_preparer.quote, tx.dialect.name
    names = [quote(column.name) for column in table.columns]
    source = _FROM_JSON[database].format(
        fields=", ".join(f"{name} TEXT" for name in names),
        shape=", ".join(f'"{column.name}": "VARCHAR"' for column in table.columns),
    )
    values = [
        _BYTES[database].format(f"r.{name}") if column.type is BYTES else f"r.{name}::{column.type.compile(tx.dialect)}"
        for name, column in zip(names, table.columns, strict=True)
    ]
    statement = (
        f"INSERT INTO {tx.dialect.identifier_preparer.format_table(table)} ({', '.join(names)})"  # noqa: S608
        f" SELECT {', '.join(values)} FROM {source}"
        f" ON CONFLICT ({', '.join(quote(column.name) for column in key)}) DO NOTHING"
    )
    return tx.exec_driver_sql(statement, (batch,)).rowcount


def _batches(rows: Sequence[Row]) -> Iterator[str | Row]:
    """Yield the rows in their order, as JSON arrays of objects; a row that is larger than a batch alone, as it is."""
    batch, size = list[bytes](), 0
    for row in rows:
        # In JSON, a large row would be in memory several times.
        is_large = sum([len(value) for value in row.values() if isinstance(value, str | bytes)]) > _BATCH_SIZE
        encoded = b"" if is_large else _encode(row)
        size += len(encoded)
        if batch and (is_large or size > _BATCH_SIZE):
            yield _array(batch)
            batch, size = [], len(encoded)
        if is_large:
            yield row
        else:
            batch.append(encoded)
    if batch:
        yield _array(batch)


def _array(rows: Sequence[bytes]) -> str:
    return f"[{b','.join(rows).decode()}]"


def _select_new(tx: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose key is not in the table, each key once. Of a key, all parts but the last are the same."""
    *same, last = table.primary_key
    new = {row[last.name]: row for row in reversed(rows)}
    keys = list(new)
    for at in range(0, len(keys), MAX_KEYS):
        where = [column == rows[0][column.name] for column in same]
        for known in tx.scalars(sa.select(last).where(*where, last.in_(keys[at : at + MAX_KEYS]))):
            new.pop(known, None)
    return list(reversed(new.values()))
