"""Types of columns whose values are the same in each database: times in UTC, JSON as text, exact texts."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine


class Time(sa.TypeDecorator[datetime]):
    """A datetime in UTC; in SQLite, text that sorts by time. Without a zone, or in no year in UTC: ``ValueError``."""

    impl, cache_ok = sa.TIMESTAMP(timezone=True), True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        types: dict[str, TypeEngine[Any]] = {"sqlite": sa.Text(), "mysql": mysql.DATETIME(fsp=6)}
        return dialect.type_descriptor(types.get(dialect.name, self.impl_instance))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | str | None:
        return None if value is None else _bound(value, dialect.name)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


@lru_cache(16)  # all rows of a page have one time
def _bound(value: datetime, database: str) -> datetime | str:
    if value.tzinfo is not UTC:
        if value.utcoffset() is None:
            raise ValueError(f"the time {value} has no zone")
        try:
            value = value.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"the time {value} has no valid year in UTC") from None
    if database == "sqlite":
        return datetime.isoformat(value, timespec="microseconds")[:26] + "Z"
    # Drivers know the class itself, and not those of pendulum.
    plain = datetime(*value.timetuple()[:6], value.microsecond)
    return plain if database == "mysql" else plain.replace(tzinfo=UTC)


class Text(sa.TypeDecorator[str]):
    """Text that is equal only to itself: case, accents and trailing spaces count. In a key, it has a length."""

    impl, cache_ok = sa.Text(), True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name != "mysql":
            return dialect.type_descriptor(sa.Text())
        # MySQL's utf8mb4_bin ignores trailing spaces, and its other collations case or accents.
        exact = "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
        if self.length is None:
            return dialect.type_descriptor(mysql.LONGTEXT(charset="utf8mb4", collation=exact))
        return dialect.type_descriptor(mysql.VARCHAR(self.length, charset="utf8mb4", collation=exact))


#: JSON as text, whose numbers no driver rounds: the engine neither encodes nor decodes it. MySQL's JSON would round.
JSON: Final = (
    Text()
    .with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
    .with_variant(sa.JSON(none_as_null=True), "duckdb")
)
BYTES: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")
WHOLE: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLAG: Final = sa.Boolean()
