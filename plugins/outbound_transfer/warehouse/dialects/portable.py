"""Any other database of a ``DbApiHook``: statements that all of them understand, types as SQLAlchemy spells them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final

from outbound_transfer.warehouse.dialects.base import Connect, Dialect, Hook, Row, missing, sqlalchemy_dialect
from outbound_transfer.warehouse.tables import Kind, Table

#: MySQL makes of a length the type that holds it; without one, its TEXT ends at 65,535 bytes.
_LONGEST: Final = 2**32 - 1


@cache
def portable(name: str, mark: str) -> Dialect:
    """Portable SQL.

    :param name: of the database, as SQLAlchemy calls it; standard SQL's spelling where it does not know it.
    :param mark: how the driver writes a parameter: ``%s`` or ``?``.
    """
    return Dialect(
        name=name,
        mark=mark,
        types=_types(name),
        text_of=partial(_text_of, name),
        longest_name=63,
        connector=_connector,
        exists=None,
        insert=partial(_insert, name, mark),
        # What drivers call a value that is refused differs; an error of another kind is known by what is tried then.
        is_refusal=lambda error: isinstance(error, Exception),
    )


def _types(name: str) -> dict[Kind, str]:
    from sqlalchemy import BigInteger, LargeBinary, SmallInteger, String, Text

    dialect = sqlalchemy_dialect(name)
    length = _LONGEST if dialect.name in ("mysql", "mariadb") else None
    compiler = dialect.type_compiler_instance
    kinds = {
        Kind.TEXT: Text(length),
        Kind.WHOLE: BigInteger(),
        Kind.FLAG: SmallInteger(),
        # As text of one length, which sorts as time does: databases differ most in their types for instants.
        Kind.TIME: String(27),
        Kind.JSON: Text(length),
        Kind.BYTES: LargeBinary(length),
    }
    return {kind: compiler.process(type_) for kind, type_ in kinds.items()}


def _text_of(name: str, length: int) -> str:
    from sqlalchemy import String

    return str(sqlalchemy_dialect(name).type_compiler_instance.process(String(length)))


def _connector(hook: Hook) -> Connect:
    def connect() -> Any:
        connection = hook.get_conn()
        if hook.supports_autocommit:  # the others begin transactions by themselves
            hook.set_autocommit(connection, False)
        return connection

    return connect


def _insert(name: str, mark: str, cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    dialect = portable(name, mark)
    new = missing(cursor, dialect, quoted, table, rows)
    if new:
        marks = ", ".join(mark for _ in table.columns)
        cursor.executemany(
            f"INSERT INTO {dialect.in_statement(quoted)} ({dialect.columns(table)}) VALUES ({marks})",  # noqa: S608
            [tuple(row) for row in new],
        )
    return len(new)
