"""Results of queries as transfers: each database and driver, each format, retries and clears, over the sandbox."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import openpyxl
import pyarrow.parquet as pq
import pytest

from outbound_transfer.exceptions import (
    InvalidDelivery,
    QueryFailed,
    ResultEmpty,
    ResultNotWritable,
    ResultTooLong,
)
from outbound_transfer.operators.recipients import RecipientsFromSql
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.query_databases import CONTACT, DRIVERS, FAILING, ROWS, QueryDatabase, create_contacts
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance

FORMATS = ["csv", "jsonl", "parquet", "xlsx"]


@pytest.fixture(params=DRIVERS)
def database(request: pytest.FixtureRequest, database_of: Callable[[str], QueryDatabase]) -> QueryDatabase:
    return database_of(request.param)


@pytest.fixture
def sqlite_database(database_of: Callable[[str], QueryDatabase]) -> QueryDatabase:
    database = database_of("sqlite")
    database.create()
    return database


def task(sandbox: Sandbox, *, retries: int = 0, **arguments: Any) -> FakeTaskInstance:
    arguments = {"subject": "Report", "recipients": ["ann@example.com"], "sql_conn_id": "warehouse", **arguments}
    return task_instance(SqlToOutboundTransferOperator, SimulatedClock(sandbox), retries=retries, **arguments)


def delivered(sandbox: Sandbox, transfer: Mapping[str, Any]) -> dict[str, bytes]:
    files = sandbox.transfer(transfer["id"])["files"]
    return {file["name"]: sandbox.stored_content(transfer["id"], file["id"]) for file in files}


QUERIES = [
    {"sql": "SELECT id, name, total, born, seen, photo FROM customers ORDER BY id", "file_name": f"customers.{suffix}"}
    for suffix in FORMATS
]


def test_each_database_delivers_each_format(connection: str, sandbox: Sandbox, database: QueryDatabase) -> None:
    database.create()

    files = delivered(sandbox, task(sandbox, queries=QUERIES).run())

    is_sqlite = database.placeholder == "?" and "sqlite" in database.airflow_connection
    header, first, second, third = list(csv.reader(io.StringIO(files["customers.csv"].decode(), newline="")))
    assert header == ["id", "name", "total", "born", "seen", "photo"]
    assert first[1] == ROWS[0][1]
    assert (first[0], first[3], first[5]) == ("1", "1980-02-29", "AP8=")
    assert first[2] == "1234567890123.45"
    assert second[1:3] == ["'=1+1", "-1" if is_sqlite else "-1.00"]
    assert third == ["3", "", "", "", "", ""]
    if not is_sqlite:  # which has no dates of its own
        assert first[4].replace(" ", "T") == "2026-01-31T12:30:00"  # as DuckDB writes it

    lines = [json.loads(line) for line in files["customers.jsonl"].splitlines()]
    assert [line["id"] for line in lines] == [1, 2, 3]
    assert lines[0]["name"] == ROWS[0][1]
    assert lines[1]["name"] == "=1+1"
    assert Decimal(str(lines[0]["total"])) == Decimal("1234567890123.45")
    assert list(lines[2].values()) == [3, None, None, None, None, None]

    table = pq.read_table(io.BytesIO(files["customers.parquet"])).to_pylist()
    assert [row["name"] for row in table] == [ROWS[0][1], "=1+1", None]
    assert [row["photo"] for row in table] == [b"\x00\xff", b"", None]
    assert Decimal(str(table[0]["total"])) == Decimal("1234567890123.45")

    sheet = openpyxl.load_workbook(io.BytesIO(files["customers.xlsx"])).active
    cells = list(sheet.iter_rows())
    assert [cell.value for cell in cells[0]] == header
    assert (cells[2][1].value, cells[2][1].data_type) == ("=1+1", "s")
    assert float(cells[1][2].value) == 1234567890123.45
    if not is_sqlite:
        assert (cells[1][3].is_date, cells[1][4].value.isoformat()) == (True, "2026-01-31T12:30:00")


def test_parameters_are_the_drivers(connection: str, sandbox: Sandbox, database: QueryDatabase) -> None:
    database.create()
    sql = f"SELECT name FROM customers WHERE id = {database.placeholder}"
    files = delivered(sandbox, task(sandbox, sql=sql, parameters=[2], file_name="a.jsonl").run())
    assert files == {"a.jsonl": b'{"name":"=1+1"}\n'}


def test_a_percent_sign_needs_no_doubling_without_parameters(
    connection: str, sandbox: Sandbox, database: QueryDatabase
) -> None:
    database.create()
    files = delivered(
        sandbox, task(sandbox, sql="SELECT id FROM customers WHERE name LIKE '%1%'", file_name="a.csv").run()
    )
    assert files == {"a.csv": b"id\r\n2\r\n"}


@pytest.mark.parametrize("count", [255, 256, 257, 1_281])  # batches have 256 and 1,024 rows
def test_no_row_is_lost_between_batches(connection: str, sandbox: Sandbox, database: QueryDatabase, count: int) -> None:
    database.create(rows=[(number, *ROWS[0][1:]) for number in range(count)])
    files = delivered(sandbox, task(sandbox, sql="SELECT id FROM customers ORDER BY id", file_name="a.csv").run())
    assert files["a.csv"].decode().split() == ["id", *map(str, range(count))]


@pytest.mark.parametrize("format_name", FORMATS)
def test_two_columns_whose_names_differ_in_case_alone(
    connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase, format_name: str
) -> None:
    sql = 'SELECT 1 AS id, 2 AS "ID"'
    with pytest.raises(ResultNotWritable, match="two columns are named 'id'.*give each a name of its own with AS"):
        task(sandbox, sql=sql, file_name=f"a.{format_name}").run()


@pytest.mark.parametrize("driver", ["sqlite", "mysqlclient"])
def test_a_statement_without_columns_says_what_to_write(
    connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase], driver: str
) -> None:
    (database := database_of(driver)).create()
    with pytest.raises(QueryFailed, match="returned no columns: write a statement that ends with a SELECT"):
        task(sandbox, sql="DELETE FROM customers", file_name="a.csv").run()
    assert len(database.read("SELECT id FROM customers")) == 3, "it was not committed"


@pytest.mark.parametrize(
    "sql", ["SELECT nothing FROM nowhere", "this is not SQL", "SELECT 1 / 'x' FROM customers, nowhere"]
)
def test_a_query_that_fails_creates_nothing(
    connection: str, sandbox: Sandbox, database: QueryDatabase, sql: str
) -> None:
    database.create()
    with pytest.raises(QueryFailed, match=r"^a\.csv: connection 'warehouse' refused the query: "):
        task(sandbox, sql=sql, file_name="a.csv").run()
    assert sandbox.requests() == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ';' AS a;",
        "SELECT ';' AS a -- one; only;",
        "-- one; only\nSELECT ';' AS a\n;\n",
        "SELECT ';' AS a /* one */ ; ",
        "WITH semicolon AS (SELECT ';' AS a) SELECT a FROM semicolon",
    ],
)
def test_a_semicolon_makes_no_second_statement(
    connection: str, sandbox: Sandbox, database: QueryDatabase, sql: str
) -> None:
    assert delivered(sandbox, task(sandbox, sql=sql, file_name="a.csv").run()) == {"a.csv": b"a\r\n;\r\n"}


@pytest.mark.parametrize("sql", ["PIVOT (SELECT 'a' AS n, 1 AS v) ON n USING sum(v)", "FROM (SELECT 1 AS a)"])
def test_duckdb_has_other_words_for_a_select(
    connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase], sql: str
) -> None:
    database_of("duckdb").create()
    assert delivered(sandbox, task(sandbox, sql=sql, file_name="a.csv").run()) == {"a.csv": b"a\r\n1\r\n"}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_an_error_is_the_first_line_of_what_the_database_says(
    connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase], driver: str
) -> None:
    """The lines after it quote the row."""
    database = database_of(driver)
    create_contacts(database, driver)
    with pytest.raises(QueryFailed, match=r"^a\.csv: connection 'warehouse' .*22P02 invalid input syntax") as caught:
        task(sandbox, sql="SELECT CAST('{' || contact AS JSON) AS a FROM contacts", file_name="a.csv").run()
    assert not set(CONTACT.split()) & set(str(caught.value).split())


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_error_of_a_query_for_recipients_quotes_no_row(
    connection: str, database_of: Callable[[str], QueryDatabase], driver: str
) -> None:
    create_contacts(database_of(driver), driver)
    query = RecipientsFromSql(sql=f"SELECT {FAILING[driver]} AS email FROM contacts", conn_id="warehouse")
    with pytest.raises(QueryFailed, match=r"connection 'warehouse' (refused|stopped)") as caught:
        query.load()
    assert not set(CONTACT.split()) & set(str(caught.value).split())
    assert "555" not in str(caught.value)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_byte_order_mark_is_no_part_of_a_query(
    connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase], driver: str
) -> None:
    database_of(driver)
    files = delivered(sandbox, task(sandbox, sql="\ufeffSELECT 1 AS a", file_name="a.csv").run())
    assert files == {"a.csv": b"a\r\n1\r\n"}


#: Values that a driver would change: what CSV and JSON Lines have.
POSTGRES = {
    "interval '1 year 2 months 3 days 04:05:06'": ("1 year 2 mons 3 days 04:05:06",) * 2,
    "interval '3 days 04:05:06.5'": ("3 days 04:05:06.5",) * 2,
    "interval '-04:05:06'": ("-04:05:06",) * 2,
    "date 'infinity'": ("infinity",) * 2,
    "date '0044-03-15 BC'": ("0044-03-15 BC",) * 2,
    "date '9999-12-31'": ("9999-12-31",) * 2,
    "date '12026-01-31'": ("12026-01-31",) * 2,
    "timestamp '-infinity'": ("-infinity",) * 2,
    "timestamp '0044-03-15 BC'": ("0044-03-15T00:00:00 BC",) * 2,
    "timestamptz 'infinity'": ("infinity",) * 2,
    "timestamptz '2026-01-31 12:30:00+00'": ("2026-01-31T07:30:00-05:00",) * 2,
    "timestamptz '1880-01-31 12:30:00+00'": ("1880-01-31T07:33:58-04:56:02",) * 2,
    "ARRAY[date 'infinity', date '2026-01-31']": ('["infinity","2026-01-31"]', ["infinity", "2026-01-31"]),
    "ARRAY[interval '1 month']": ('["1 mon"]', ["1 mon"]),
    """jsonb '{"a": 1.00000000000000000001, "b": [123456789012345678901234567890]}'""": (
        '{"a": 1.00000000000000000001, "b": [123456789012345678901234567890]}',
        {"a": Decimal("1.00000000000000000001"), "b": [123456789012345678901234567890]},
    ),
    """json '{"a":\n 1.10}'""": ('{"a":\n 1.10}', {"a": Decimal("1.10")}),
    "CAST('x ' AS char(3))": ("x  ",) * 2,
    "numeric 'NaN'": ("NaN", None),
    "true": ("true", True),
    "NULL::jsonb": ("", None),
    "NULL::date": ("", None),
}

MYSQL = {
    "CAST('0000-00-00' AS DATE)": ("0000-00-00",) * 2,
    "CAST('2026-02-00' AS DATE)": ("2026-02-00",) * 2,
    "CAST('2026-01-31 12:30:00' AS DATETIME)": ("2026-01-31T12:30:00",) * 2,
    "CAST('00:00:00' AS TIME)": ("00:00:00",) * 2,
    "CAST('26:00:01.5' AS TIME(1))": ("26:00:01.5",) * 2,
    "CAST(NULL AS DATE)": ("", None),
}


@pytest.mark.parametrize(("driver", "values"), [("psycopg", POSTGRES), ("psycopg2", POSTGRES), ("mysqlclient", MYSQL)])
def test_what_a_driver_would_change_comes_as_the_database_writes_it(
    connection: str,
    sandbox: Sandbox,
    database_of: Callable[[str], QueryDatabase],
    driver: str,
    values: dict[str, tuple[str, Any]],
) -> None:
    database_of(driver)
    sql = "SELECT " + ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(values))
    queries = [{"sql": sql, "file_name": f"a.{suffix}"} for suffix in FORMATS]
    files = delivered(sandbox, task(sandbox, queries=queries, timezone="America/New_York").run())
    _, row = csv.reader(io.StringIO(files["a.csv"].decode(), newline=""))
    assert dict(zip(values, row, strict=True)) == {expression: text for expression, (text, _) in values.items()}
    line = json.loads(files["a.jsonl"], parse_float=Decimal)
    assert dict(zip(values, line.values(), strict=True)) == {
        expression: value for expression, (_, value) in values.items()
    }
    assert pq.read_table(io.BytesIO(files["a.parquet"])).num_rows == 1


DUCKDB = {
    "'nan'::DOUBLE": "nan",
    "1.50::DECIMAL(9, 2)": "1.50",
    "TIMESTAMP '2026-01-31 12:30:00.5'": "2026-01-31 12:30:00.5",
    "TIMESTAMPTZ '2026-01-31 12:30:00+00'": "2026-01-31 07:30:00-05:00",
    "'0044-03-15 (BC)'::TIMESTAMP": "0044-03-15 (BC) 00:00:00",
    "INTERVAL '-04:05:06'": "-04:05:06",
    "'\\xF8\\xFF'::BLOB": "+P8=",
    "{'a': [1, 2]}": '{"a":[1,2]}',
    "'=1'::ENUM('=1')": "'=1",
    "true": "true",
    "NULL": "",
}


def test_duckdb_writes_csv(connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase]) -> None:
    database_of("duckdb").create()
    sql = "SELECT " + ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(DUCKDB))
    transfer = task(sandbox, sql=sql, file_name="a.csv", timezone="America/New_York").run()
    _, row = csv.reader(io.StringIO(delivered(sandbox, transfer)["a.csv"].decode(), newline=""))
    assert dict(zip(DUCKDB, row, strict=True)) == DUCKDB


def escape_formula(text: str) -> str:
    if not re.fullmatch(r"[-+]?[0-9]+([.,][0-9]+)*([eE][-+]?[0-9]+)?", text):
        text = re.sub('(^|[;\t\r\n])((?:[^\\S\t\r\n]|[\x00-\x08\ufeff"])*[-=+@\uff0b])', r"\1'\2", text)
    return f"'{text}" if text.startswith(("\t", "\r", "\n")) else text


@pytest.mark.parametrize("driver", ["duckdb", "psycopg", "psycopg2"])
def test_a_database_finds_the_formulas_that_python_finds(
    connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase], driver: str
) -> None:
    database, some = database_of(driver), Random(1)
    database.create()
    signs = " \"';,\t\r\n\ufeff=+-@|a1.e\xa0\u2003\uff0b\\%\x01" + "\0" * (driver == "duckdb")
    texts = ["".join(some.choices(signs, k=some.randrange(8))) for _ in range(1_000)]
    parameter = database.placeholder
    sql = f'SELECT unnest(CAST({parameter} AS text[])) AS "=1%%"' if driver != "duckdb" else 'SELECT unnest(?) AS "=1%"'
    files = delivered(sandbox, task(sandbox, sql=sql, parameters=[texts], file_name="a.csv").run())
    rows = list(csv.reader(io.StringIO(files["a.csv"].decode(), newline="")))
    assert rows == [[escape_formula(text)] for text in ("=1%", *texts)]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("interval '1 month'", "1 month"),
        ("interval '3 days 04:05:06.5'", "3 days 04:05:06.5"),
        ("date 'infinity'", "infinity"),
        ("timestamptz '-infinity'", "-infinity"),
        ("'0044-03-15 (BC)'::TIMESTAMP", "0044-03-15 (BC) 00:00:00"),
        ("timestamptz '2026-01-31 12:30:00.5+00'", "2026-01-31T12:30:00.500000+00:00"),
        ("timestamp '2026-01-31 12:30:00'", "2026-01-31T12:30:00"),
        ("'2026-01-31 00:00:00.123456789'::TIMESTAMP_NS", "2026-01-31 00:00:00.123456789"),
        ("['infinity'::DATE]", ["infinity"]),
        ("array_value('-infinity'::TIMESTAMPTZ)", ["-infinity"]),
        ("{'b': ['infinity'::TIMESTAMP]}", {"b": ["infinity"]}),
        ("map {'b': DATE '0001-01-01'}", {"b": "0001-01-01"}),
        ("map {'infinity'::DATE: 1}", {"infinity": 1}),
        ("""'{"a": 1.00000000000000000001}'::JSON""", {"a": Decimal("1.00000000000000000001")}),
        ("[0.1::DECIMAL(38, 20)]", [Decimal("0.1")]),
        ("[170141183460469231731687303715884105727]", [2**127 - 1]),
    ],
)
def test_what_the_driver_of_duckdb_changes_comes_as_the_database_writes_it(
    connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase], expression: str, value: Any
) -> None:
    database_of("duckdb").create()
    queries = [{"sql": f"SELECT {expression} AS a", "file_name": f"a.{suffix}"} for suffix in FORMATS]
    files = delivered(sandbox, task(sandbox, queries=queries).run())
    assert json.loads(files["a.jsonl"], parse_float=Decimal) == {"a": value}
    assert pq.read_table(io.BytesIO(files["a.parquet"])).num_rows == 1


def test_a_float_that_mysql_rounds_is_refused(
    connection: str, sandbox: Sandbox, database_of: Callable[[str], QueryDatabase]
) -> None:
    database = database_of("mysqlclient")
    database.run("CREATE TABLE floats (value FLOAT)")
    database.run("INSERT INTO floats VALUES (16777216)")
    with pytest.raises(ResultNotWritable, match="rounds a FLOAT to six digits: CAST the column AS DOUBLE"):
        task(sandbox, sql="SELECT value FROM floats", file_name="a.csv").run()
    text = task(sandbox, sql="SELECT CAST(value AS DOUBLE) AS value FROM floats", file_name="a.csv").run()
    assert b"16777216.0" in delivered(sandbox, text)["a.csv"]


def test_an_error_does_not_quote_the_password(
    connection: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, postgres: Any
) -> None:
    value = {"conn_type": "postgres", "host": postgres.host, "schema": "hunter2-hunter2 missing", "login": "postgres"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({**value, "password": "hunter2-hunter2"}))
    with pytest.raises(QueryFailed, match="connection 'warehouse' cannot be opened") as caught:
        task(sandbox, sql="SELECT 1", file_name="a.csv").run()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_connection_that_is_not_sql(connection: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "fs"}))
    with pytest.raises(AirflowFailException, match="connection 'warehouse' is not a SQL connection"):
        task(sandbox, sql="SELECT 1", file_name="a.csv").run()


NO_ROWS = "SELECT id FROM customers WHERE id > 9"


def test_an_empty_result_fails(connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase) -> None:
    with pytest.raises(ResultEmpty, match=r"a\.csv: the query on connection 'warehouse' returned no row"):
        task(sandbox, sql=NO_ROWS, file_name="a.csv").run()
    assert sandbox.requests() == []


def test_an_empty_result_skips_the_task(connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase) -> None:
    with pytest.raises(AirflowSkipException):
        task(sandbox, sql=NO_ROWS, file_name="a.csv", on_empty="skip").run()
    assert sandbox.requests() == []


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_empty_result_is_sent_with_its_header(
    connection: str, sandbox: Sandbox, database: QueryDatabase, format_name: str
) -> None:
    database.create()
    name = f"a.{format_name}"
    content = delivered(sandbox, task(sandbox, sql=NO_ROWS, file_name=name, on_empty="send").run())[name]
    assert _header(format_name, content) == ([] if format_name == "jsonl" else ["id"])


def _header(format_name: str, content: bytes) -> list[str]:
    if format_name == "parquet":
        return list(pq.read_table(io.BytesIO(content)).column_names)
    if format_name == "xlsx":
        return [cell.value for cell in openpyxl.load_workbook(io.BytesIO(content)).active[1]]
    return content.decode().split()


def test_of_several_results_the_empty_one_is_left_out(
    connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase
) -> None:
    queries = [
        {"sql": NO_ROWS, "file_name": "empty.csv"},
        {"sql": "SELECT id FROM customers WHERE id = :id", "parameters": {"id": 1}, "file_name": "one.csv"},
    ]
    delivery = task(sandbox, queries=queries, on_empty="skip")
    transfer = delivery.run()
    assert delivered(sandbox, transfer) == {"one.csv": b"id\r\n1\r\n"}
    assert again(delivery)["id"] == transfer["id"]


def test_too_many_rows_create_nothing(connection: str, sandbox: Sandbox, database: QueryDatabase) -> None:
    database.create(rows=[(number, *ROWS[0][1:]) for number in range(300)])
    with pytest.raises(ResultTooLong, match=r"more than 299 rows"):
        task(sandbox, sql="SELECT * FROM customers", file_name="a.xlsx", max_rows="299").run()
    assert sandbox.requests() == []
    task(sandbox, sql="SELECT * FROM customers", file_name="a.xlsx", max_rows=300).run()


def test_other_files_come_along(
    connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase, tmp_path: Path
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_bytes(b"Dear Ann")
    transfer = task(sandbox, sql="SELECT 1 AS one", file_name="a.csv", files=str(letter)).run()
    assert delivered(sandbox, transfer) == {"a.csv": b"one\r\n1\r\n", "letter.txt": b"Dear Ann"}


@pytest.mark.parametrize("on_empty", ["fail", "skip", "send"])
@pytest.mark.parametrize("change", ["DELETE FROM customers", "DELETE FROM customers WHERE id = 1"])
def test_after_the_send_a_clear_refuses_another_result(
    connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase, change: str, on_empty: str
) -> None:
    delivery = task(sandbox, sql="SELECT id FROM customers", file_name="a.csv", on_empty=on_empty)
    transfer = delivery.run()
    assert again(delivery)["id"] == transfer["id"]
    sqlite_database.run(change)
    with pytest.raises(AirflowFailException, match="with other input"):
        again(delivery)
    assert sandbox.assert_sent_once() == transfer["id"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either sql and file_name, or queries"),
        ({"sql": "SELECT 1", "queries": QUERIES}, "either sql and file_name, or queries"),
        ({"sql": "SELECT 1"}, "file_name of a query is text"),
        ({"sql": "SELECT 1", "file_name": "a.txt"}, r"the suffix of 'a.txt' names no format"),
        ({"sql": "SELECT 1", "file_name": "a.txt", "file_format": "ods"}, "file_format is one of csv"),
        ({"sql": "SELECT 1", "file_name": "../a.csv"}, "a.csv"),
        ({"sql": " ", "file_name": "a.csv"}, "sql of a query is text"),
        ({"sql": "SELECT 1", "file_name": "a.csv", "parameters": "x"}, "parameters of a query"),
        ({"sql": "SELECT 1", "file_name": "a.csv", "on_empty": "ignore"}, "on_empty is one of"),
        ({"sql": "SELECT 1", "file_name": "a.csv", "csv_formulas": "no"}, "csv_formulas is one of"),
        ({"sql": "SELECT 1", "file_name": "a.csv", "timezone": "Mars"}, "timezone 'Mars'"),
        ({"sql": "SELECT 1", "file_name": "a.csv", "max_rows": 0}, "max_rows must be a whole number"),
        ({"queries": []}, "queries is a list"),
        ({"queries": [{"sql": "SELECT 1"}]}, "file_name of a query"),
        ({"queries": [{"sql": "SELECT 1", "file_name": "a.csv", "conn": "x"}]}, "a query is a mapping"),
        ({"queries": [QUERIES[0], QUERIES[0]]}, "two queries have one file_name"),
    ],
)
def test_wrong_arguments_create_nothing(
    connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((AirflowFailException, InvalidDelivery), match=message):
        task(sandbox, retries=2, **arguments).run()
    assert sandbox.requests() == []


TEMPLATED = """
    from airflow.sdk import DAG
    from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator

    with DAG("templated", schedule=None, template_searchpath="{folder}", params={{"id": 2}}):
        SqlToOutboundTransferOperator(
            task_id="deliver", sql_conn_id="warehouse", subject="Report", recipients=["ann@example.com"],
            queries=[
                {{"sql": "one.sql", "parameters": ["{{{{ params.id }}}}"], "file_name": "of-{{{{ params.id }}}}.csv"}},
                {{"sql": "SELECT id FROM customers WHERE id > {{{{ params.id }}}}", "file_name": "rest.csv"}},
            ],
        )
        SqlToOutboundTransferOperator.partial(
            task_id="mapped", sql_conn_id="warehouse", subject="Report", recipients=["ann@example.com"], sql="one.sql",
        ).expand_kwargs([{{"parameters": [one], "file_name": f"{{one}}.csv"}} for one in (1, 2)])
        SqlToOutboundTransferOperator(
            task_id="not_a_query", sql_conn_id="warehouse", subject="monthly.sql", recipients=["ann@example.com"],
            sql="SELECT 1 AS id", file_name="result.csv", files=["{folder}/schema.sql"], message="See schema.sql",
        )
"""


def test_a_dag_with_templates_and_sql_files(
    run_dag: Any, connection: str, sandbox: Sandbox, sqlite_database: QueryDatabase, tmp_path: Path
) -> None:
    (tmp_path / "one.sql").write_text("SELECT id FROM customers WHERE id = ? /* {{ task.task_id }} */")
    (tmp_path / "schema.sql").write_text("CREATE TABLE t (id int);")
    run = run_dag(TEMPLATED.format(folder=str(tmp_path)))
    assert set(run.states().values()) == {"success"}
    assert len(run.states()) == 4
    result = run.xcom("not_a_query")
    assert result["subject"] == "monthly.sql"
    assert result["message"] == "See schema.sql"
    assert delivered(sandbox, result) == {"result.csv": b"id\r\n1\r\n", "schema.sql": b"CREATE TABLE t (id int);"}
    assert delivered(sandbox, run.xcom("deliver")) == {"of-2.csv": b"id\r\n2\r\n", "rest.csv": b"id\r\n3\r\n"}
    assert delivered(sandbox, run.xcom("mapped", map_index=1)) == {"2.csv": b"id\r\n2\r\n"}
