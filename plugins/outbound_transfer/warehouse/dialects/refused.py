"""The driver of MySQL that is not supported."""

from __future__ import annotations

from typing import Any

from outbound_transfer.store.errors import UnsupportedDatabase


def check_driver(connection: Any) -> None:
    """Check the driver of an open connection.

    :raises UnsupportedDatabase: it is MySQL's other one.
    """
    if type(connection).__module__.startswith("mysql.connector"):
        raise UnsupportedDatabase(
            "The connection's driver is mysql-connector-python, and this package knows mysqlclient: take the field "
            "client out of the connection's extra"
        )
