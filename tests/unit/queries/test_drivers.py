"""What is refused of each driver, and what is told of its errors."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.queries.errors import QueryFailed, describe_error
from outbound_transfer.queries.export import open_cursor


class MysqlConnector:
    """A connection of mysql-connector-python."""

    __module__ = "mysql.connector.connection"


def test_the_second_driver_of_mysql_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(QueryFailed, match="knows mysqlclient: take the field client out"):
        open_cursor(MysqlConnector())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((1146, "Table 'a' doesn't exist\nb"), ("ValueError 1146", "Table 'a' doesn't exist")),  # of MySQL
        (({"S": "ERROR", "C": "22P02", "M": "no number", "D": "Ann"},), ("ValueError 22P02", "no number")),
        (({"S": "ERROR", "C": "22P02", "M": "no number", "D": "Ann"}, "Ann"), ("ValueError 22P02", "no number")),
        (({"D": "Ann"},), ("ValueError", "")),
        (("no number",), ("ValueError", "no number")),
        (("Ann", "no number"), ("ValueError", "('Ann', 'no number')")),
        ((), ("ValueError", "")),
    ],
)
def test_of_an_error_are_told_its_code_and_the_first_line(arguments: tuple[Any, ...], told: tuple[str, str]) -> None:
    assert describe_error(ValueError(*arguments)) == told
