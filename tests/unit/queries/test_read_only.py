"""One statement, for the driver that sends several."""

from __future__ import annotations

import pytest

from outbound_transfer.queries.read_only import is_one_statement


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
