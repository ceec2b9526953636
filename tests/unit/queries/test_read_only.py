"""What is refused of each driver."""

from __future__ import annotations

import pytest

from outbound_transfer.queries.errors import QueryFailed
from outbound_transfer.queries.read_only import is_one_statement, open_cursor
from outbound_transfer.warehouse.dialects.mysql import MySqlDialect
from outbound_transfer.warehouse.errors import UnsupportedWarehouse


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT 1 ; \n;",
        "SELECT ';' AS \"a;b\" -- c;d\n;",
        "SELECT 'it''s; so'",
        "SELECT E'\\n', $$a$$ /* b */;",  # not parsed, and without a semicolon
    ],
)
def test_one_statement(sql: str) -> None:
    assert is_one_statement(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "SELECT ';'; SELECT 2",
        "SELECT 1 -- a\n; SELECT 2",
        "SELECT 1 -- a\r; SELECT 2",
        "SELECT 1 --'\n; SELECT 2 --'",
        "SELECT 'a\\'; SELECT '",
        "SELECT E'a'\n'\\''; SELECT 2 --'",
        "SELECT $a$ ' $a$; SELECT 2 --'",
        "SELECT 1 /* ' */; SELECT 2 --'",
        "SELECT '; SELECT 2",
    ],
)
def test_several_statements(sql: str) -> None:
    assert not is_one_statement(sql)


class MysqlConnector:
    """A connection of mysql-connector-python."""

    __module__ = "mysql.connector.connection"
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_the_second_driver_of_mysql_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(QueryFailed, match="knows mysqlclient: take the field client out"):
        open_cursor(MysqlConnector(), "SELECT 1")
    connection = MysqlConnector()

    class Hook:
        def get_conn(self) -> MysqlConnector:
            return connection

    with pytest.raises(UnsupportedWarehouse, match="knows mysqlclient: take the field client out"):
        MySqlDialect().connection_factory(Hook())()  # type: ignore[arg-type]
    assert connection.is_closed
