"""What is refused of each driver."""

from __future__ import annotations

import pytest

from outbound_transfer.queries.drivers import open_cursor
from outbound_transfer.queries.errors import QueryFailed
from outbound_transfer.store.errors import UnsupportedDatabase
from outbound_transfer.warehouse.dialects.mysql import MySqlDialect


class MysqlConnector:
    """A connection of mysql-connector-python."""

    __module__ = "mysql.connector.connection"
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_the_second_driver_of_mysql_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(QueryFailed, match="knows mysqlclient: take the field client out"):
        open_cursor(MysqlConnector())
    connection = MysqlConnector()

    class Hook:
        def get_conn(self) -> MysqlConnector:
            return connection

    with pytest.raises(UnsupportedDatabase, match="knows mysqlclient: take the field client out"):
        MySqlDialect().connection_factory(Hook())()  # type: ignore[arg-type]
    assert connection.is_closed
