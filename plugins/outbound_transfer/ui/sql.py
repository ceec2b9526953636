"""SQLAlchemy Core for a DB-API cursor: SQLAlchemy writes a statement once, the warehouse's own cursor runs it.

Connections, time limits and DuckDB's file lock remain the warehouse's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Table
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.selectable import FromClause, Select

from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.tables import with_names

R = TypeVar("R", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Schema:
    """Tables that exist in a warehouse, as statements name them.

    :ivar dialect: writes statements in the warehouse's SQL.
    :ivar prefix: of the tables' names.
    :ivar schema: that of the tables; None for the connection's own.
    """

    dialect: Dialect
    prefix: str
    schema: str | None
    tables: frozenset[Table]

    @classmethod
    def of(cls, warehouse: Warehouse, tables: Iterable[Table]) -> Schema:
        """Return the schema that has ``tables`` of ``warehouse``."""
        return cls(warehouse.dialect.sql(), warehouse.prefix, warehouse.schema, frozenset(tables))

    def __contains__(self, table: Table) -> bool:
        return table in self.tables

    def table(self, table: Table, alias: str) -> FromClause:
        """Return a table for statements."""
        return with_names(table, self.prefix, self.schema).alias(alias)

    def prepare(self, statement: Select[Any], row_type: type[R]) -> Query[R]:
        """Write ``statement`` in the warehouse's SQL.

        :param row_type: a NamedTuple whose fields are the selected columns.
        """
        compiled = statement.compile(dialect=self.dialect, compile_kwargs={"render_postcompile": True})
        columns = tuple(statement.selected_columns.keys())
        assert columns == row_type._fields, columns  # type: ignore[attr-defined]
        return Query(str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params), row_type)


@dataclass(frozen=True)
class Query(Generic[R]):
    """A statement as text.

    :ivar positions: the parameters' names, in the order of the placeholders.
    :ivar constants: values of parameters that are the same in every run.
    """

    sql: str
    positions: tuple[str, ...]
    constants: Mapping[str, Any]
    row_type: type[R]

    def fetch(self, tx: Any, **values: Any) -> list[R]:
        """Run the statement and return all rows.

        :param values: the parameters' values by name.
        """
        found = {**self.constants, **values}
        tx.execute(self.sql, tuple(found[name] for name in self.positions))
        return [self.row_type._make(row) for row in fetch_all(tx)]  # type: ignore[attr-defined]
