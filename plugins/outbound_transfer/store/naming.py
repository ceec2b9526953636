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

    :param max_length: bytes of its name.
    :raises InvalidName: the database cannot use it unchanged.
    """
    _check_name("schema", "" if schema is None else schema, max_length)


def _check_name(argument: str, name: Any, max_length: int) -> None:
    _check_text(argument, name)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the name {name!r} cannot be encoded in UTF-8") from None
    if "\0" in name:
        raise InvalidName(f"the name {name!r} contains a NUL character")
    if size > max_length:
        # The database would shorten it silently, and two tables could become one.
        raise InvalidName(f"the name {name!r} is too long: at most {max_length} bytes")


def check_table(name: Any) -> None:
    """Check the name of an Iceberg table.

    :raises InvalidName: it has no namespace.
    """
    _check_text("table", name)
    if "." not in name or not all(name.split(".")):
        raise InvalidName(f"'{name}' is not the name of an Iceberg table: write namespace.table")


def _check_text(argument: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidName(f"{argument} must be text, not {value!r:.100}")
