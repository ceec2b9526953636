"""Names of tables, apart from what stores them: operators check them without importing SQLAlchemy."""

from __future__ import annotations

from typing import Any, Final

from outbound_transfer.store.errors import InvalidName

#: Start of the tables' names.
DEFAULT_PREFIX: Final = "outbound_transfer_"

#: Bytes of a name in the database that takes the longest ones.
MAX_NAME_LENGTH: Final = 1_000

#: Bytes that a prefix leaves for the name of a table.
MAX_TABLE_LENGTH: Final = len("rejected_lines")


def check_prefix(prefix: Any, max_length: int = MAX_NAME_LENGTH) -> None:
    """Check the prefix of tables' names.

    :param max_length: bytes of a table's name.
    :raises InvalidName: the database cannot use it unchanged.
    """
    _check_name("table_prefix", prefix, max_length - MAX_TABLE_LENGTH)


def check_schema(schema: Any, max_length: int = MAX_NAME_LENGTH) -> None:
    """Check the name of a schema; None and no text are the connection's own.

    :raises InvalidName: the database cannot use it unchanged.
    """
    _check_name("schema", "" if schema is None else schema, max_length)


def check_table(name: Any) -> None:
    """Check the name of an Iceberg table.

    :raises InvalidName: it has no namespace.
    """
    _check_name("table", name, MAX_NAME_LENGTH)
    if "." not in name or not all(name.split(".")):
        raise InvalidName(f"'{name}' is not the name of an Iceberg table: write namespace.table")


def _check_name(argument: str, name: Any, max_length: int) -> None:
    if not isinstance(name, str):
        raise InvalidName(f"{argument} must be text, not {name!r:.100}")
    if "\0" in name:
        raise InvalidName(f"the name {name!r} contains a NUL character")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the name {name!r} cannot be encoded in UTF-8") from None
    if size > max_length:  # the database would shorten it silently, and two tables could become one
        raise InvalidName(f"the name {name!r} is too long: at most {max_length} bytes")
