"""Results of queries as transfers: each database and driver, each format, retries and clears, over the sandbox."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from random import Random
from typing import Any

import openpyxl
import pyarrow.parquet as pq
import pytest

from outbound_transfer.exceptions import InvalidDelivery, QueryFailed, ResultEmpty, ResultNotWritable, ResultTooLong
from outbound_transfer.operators.recipients import RecipientsFromSql
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.query_databases import CONTACT, DRIVERS, FAILING, ROWS, QueryDatabase, create_contacts
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance

FORMATS = ["csv", "jsonl", "parquet", "xlsx"]


@pytest.fixture(params=DRIVERS)
def database(request, database_of) -> QueryDatabase:
    return database_of(request.param)


@pytest.fixture
def sqlite_database(database_of) -> QueryDatabase:
    database = database_of("sqlite")
    database.create()
    return database


@pytest.fixture
def task(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    given = {"subject": "Report", "recipients": ["ann@example.com"], "sql_conn_id": "warehouse"}
    time = SimulatedClock(sandbox)
    return lambda **arguments: task_instance(SqlToOutboundTransferOperator, time, **{**given, **arguments})


@pytest.fixture
def deliver(task, sandbox) -> Callable[..., dict[str, bytes]]:
    return lambda **arguments: delivered(sandbox, task(**arguments).run())


def delivered(sandbox: Sandbox, transfer: Mapping[str, Any]) -> dict[str, bytes]:
    files = sandbox.transfer(transfer["id"])["files"]
    return {file["name"]: sandbox.stored_content(transfer["id"], file["id"]) for file in files}


def rows_of(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


QUERIES = [
    {"sql": "SELECT id, name, total, born, seen, photo FROM customers ORDER BY id", "file_name": f"customers.{suffix}"}
    for suffix in FORMATS
]


def test_each_database_delivers_each_format(deliver, database) -> None:
    database.create()
    files = deliver(queries=QUERIES)
    has_times = database.placeholder != "?" or "duckdb" in database.airflow_connection
    header, first, second, third = rows_of(files["customers.csv"])
    assert header == ["id", "name", "total", "born", "seen", "photo"]
    assert [*first[:4], first[5]] == ["1", ROWS[0][1], "1234567890123.45", "1980-02-29", "AP8="]
    assert second[1:3] == ["'=1+1", "-1.00" if has_times else "-1"]
    assert third == ["3", "", "", "", "", ""]

    lines = [json.loads(line) for line in files["customers.jsonl"].splitlines()]
    assert [(line["id"], line["name"]) for line in lines] == [(1, ROWS[0][1]), (2, "=1+1"), (3, None)]
    assert list(lines[2].values()) == [3, None, None, None, None, None]
    table = pq.read_table(io.BytesIO(files["customers.parquet"])).to_pylist()
    assert [row["name"] for row in table] == [ROWS[0][1], "=1+1", None]
    assert [row["photo"] for row in table] == [b"\x00\xff", b"", None]
    cells = list(openpyxl.load_workbook(io.BytesIO(files["customers.xlsx"])).active.iter_rows())
    assert [cell.value for cell in cells[0]] == header
    assert (cells[2][1].value, cells[2][1].data_type) == ("=1+1", "s")
    for total in (lines[0]["total"], table[0]["total"], cells[1][2].value):
        assert Decimal(str(total)) == Decimal("1234567890123.45")
    if has_times:  # SQLite has none
        assert first[4].replace(" ", "T") == "2026-01-31T12:30:00"  # as DuckDB writes it
        assert (cells[1][3].is_date, cells[1][4].value.isoformat()) == (True, "2026-01-31T12:30:00")


#: Queries as users type them, and the CSV of each.
TYPED = {
    "SELECT ';' AS a;": b"a\r\n;\r\n",
    "SELECT ';' AS a -- one; only;": b"a\r\n;\r\n",
    "-- one; only\nSELECT ';' AS a\n;\n": b"a\r\n;\r\n",
    "SELECT ';' AS a /* one */ ; ": b"a\r\n;\r\n",
    "WITH semicolon AS (SELECT ';' AS a) SELECT a FROM semicolon": b"a\r\n;\r\n",
    "\ufeffSELECT 1 AS a": b"a\r\n1\r\n",
    "SELECT id FROM customers WHERE name LIKE '%1%'": b"id\r\n2\r\n",
}
TYPED_FOR_DUCKDB = {
    "PIVOT (SELECT 'a' AS n, 1 AS v) ON n USING sum(v)": b"a\r\n1\r\n",
    "FROM (SELECT 1 AS a)": b"a\r\n1\r\n",
}


def test_a_query_is_run_as_it_is_typed_and_its_parameters_are_the_drivers(deliver, database) -> None:
    database.create()
    typed = TYPED | (TYPED_FOR_DUCKDB if "duckdb" in database.airflow_connection else {})
    queries = [{"sql": sql, "file_name": f"{number}.csv"} for number, sql in enumerate(typed)]
    with_parameter = f"SELECT name FROM customers WHERE id = {database.placeholder}"
    queries.append({"sql": with_parameter, "parameters": [2], "file_name": "a.jsonl"})
    files = deliver(queries=queries)
    assert {sql: files[f"{number}.csv"] for number, sql in enumerate(typed)} == typed
    assert files["a.jsonl"] == b'{"name":"=1+1"}\n'


def test_no_row_is_lost_between_batches_and_too_many_create_nothing(task, deliver, sandbox, database) -> None:
    database.create(rows=[(number, *ROWS[0][1:]) for number in range(1_281)])
    counts = (255, 256, 257, 1_281)  # batches have 256 and 1,024 rows
    query = "SELECT id FROM customers WHERE id < {} ORDER BY id"
    files = deliver(queries=[{"sql": query.format(count), "file_name": f"{count}.csv"} for count in counts])
    for count in counts:
        assert files[f"{count}.csv"].decode().split() == ["id", *map(str, range(count))]
    made = sandbox.requests()
    with pytest.raises(ResultTooLong, match=r"more than 299 rows"):
        task(sql=query.format(300), file_name="a.xlsx", max_rows="299").run()
    assert sandbox.requests() == made
    deliver(sql=query.format(300), file_name="a.xlsx", max_rows=300)


@pytest.mark.parametrize("format_name", FORMATS)
def test_two_columns_whose_names_differ_in_case_alone(task, sqlite_database, format_name) -> None:
    with pytest.raises(ResultNotWritable, match="two columns are named 'id'.*give each a unique name with AS"):
        task(sql='SELECT 1 AS id, 2 AS "ID"', file_name=f"a.{format_name}").run()


@pytest.mark.parametrize("driver", ["sqlite", "mysqlclient"])
def test_a_statement_without_columns_says_what_to_write(task, database_of, driver) -> None:
    (database := database_of(driver)).create()
    with pytest.raises(QueryFailed, match="returned no columns: write a statement that ends with a SELECT"):
        task(sql="DELETE FROM customers", file_name="a.csv").run()
    assert len(database.read("SELECT id FROM customers")) == 3, "it was not committed"


def test_a_query_that_fails_creates_nothing(task, sandbox, database) -> None:
    database.create()
    for sql in ("SELECT nothing FROM nowhere", "this is not SQL", "SELECT 1 / 'x' FROM customers, nowhere"):
        with pytest.raises(QueryFailed, match=r"^a\.csv: connection 'warehouse' refused the query: "):
            task(sql=sql, file_name="a.csv").run()
    assert sandbox.requests() == []


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_error_of_a_query_for_recipients_quotes_no_row(connection, database_of, driver) -> None:
    create_contacts(database_of(driver), driver)
    query = RecipientsFromSql(sql=f"SELECT {FAILING[driver]} AS email FROM contacts", conn_id="warehouse")
    with pytest.raises(QueryFailed, match=r"connection 'warehouse' (refused|stopped)") as caught:
        query.load()
    assert not set(CONTACT.split()) & set(str(caught.value).split())
    assert "555" not in str(caught.value)


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
    "CAST('0000-00-00' AS DATETIME)": ("0000-00-00 00:00:00",) * 2,
    "CAST('2026-00-00 10:00:00' AS DATETIME)": ("2026-00-00 10:00:00",) * 2,
    "CAST('2026-02-00' AS DATE)": ("2026-02-00",) * 2,
    "CAST('2026-01-31 12:30:00' AS DATETIME)": ("2026-01-31T12:30:00",) * 2,
    "CAST('00:00:00' AS TIME)": ("00:00:00",) * 2,
    "CAST('26:00:01.5' AS TIME(1))": ("26:00:01.5",) * 2,
    "CAST(NULL AS DATE)": ("", None),
}


DUCKDB = {
    "'nan'::DOUBLE": ("nan", None),
    "1.50::DECIMAL(9, 2)": ("1.50",) * 2,
    "TIMESTAMP '2026-01-31 12:30:00.5'": ("2026-01-31 12:30:00.5", "2026-01-31T12:30:00.500000"),
    "TIMESTAMPTZ '2026-01-31 12:30:00.5+00'": ("2026-01-31 07:30:00.5-05:00", "2026-01-31T07:30:00.500000-05:00"),
    "timestamptz '-infinity'": ("-infinity",) * 2,
    "'2026-01-31 00:00:00.123456789'::TIMESTAMP_NS": ("2026-01-31 00:00:00.123456789",) * 2,
    "'0044-03-15 (BC)'::TIMESTAMP": ("0044-03-15 (BC) 00:00:00",) * 2,
    "date 'infinity'": ("infinity",) * 2,
    "interval '1 month 3 days 04:05:06.5'": ("1 month 3 days 04:05:06.5",) * 2,
    "INTERVAL '-04:05:06'": ("-04:05:06",) * 2,
    "'\\xF8\\xFF'::BLOB": ("+P8=",) * 2,
    "{'a': [1, 2]}": ('{"a":[1,2]}', {"a": [1, 2]}),
    "['infinity'::DATE]": ('["infinity"]', ["infinity"]),
    "array_value('-infinity'::TIMESTAMPTZ)": ('["-infinity"]', ["-infinity"]),
    "{'b': ['infinity'::TIMESTAMP]}": ('{"b":["infinity"]}', {"b": ["infinity"]}),
    "map {'infinity'::DATE: 1}": ('{"infinity":1}', {"infinity": 1}),
    """'{"a": 1.00000000000000000001}'::JSON""": (
        '{"a": 1.00000000000000000001}',
        {"a": Decimal("1.00000000000000000001")},
    ),
    "[0.1::DECIMAL(38, 20)]": ("[0.10000000000000000000]", [Decimal("0.1")]),
    "[170141183460469231731687303715884105727]": ("[170141183460469231731687303715884105727]", [2**127 - 1]),
    "'=1'::ENUM('=1')": ("'=1", "=1"),
    "true": ("true", True),
    "NULL": ("", None),
}


@pytest.mark.parametrize(
    ("driver", "values"),
    [("psycopg", POSTGRES), ("psycopg2", POSTGRES), ("mysqlclient", MYSQL), ("duckdb", DUCKDB)],
)
def test_values_a_driver_would_change_arrive_as_the_database_writes_them(deliver, database_of, driver, values) -> None:
    database_of(driver).create()
    sql = "SELECT " + ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(values))
    files = deliver(
        queries=[{"sql": sql, "file_name": f"a.{suffix}"} for suffix in FORMATS], timezone="America/New_York"
    )
    line = json.loads(files["a.jsonl"], parse_float=Decimal)
    assert dict(zip(values, zip(rows_of(files["a.csv"])[1], line.values(), strict=True), strict=True)) == values
    assert pq.read_table(io.BytesIO(files["a.parquet"])).num_rows == 1


def escape_formula(text: str) -> str:
    if not re.fullmatch(r"[-+]?[0-9]+([.,][0-9]+)*([eE][-+]?[0-9]+)?", text):
        text = re.sub('(^|[;\t\r\n])((?:[^\\S\t\r\n]|[\x00-\x08\ufeff"])*[-=+@\uff0b])', r"\1'\2", text)
    return f"'{text}" if text.startswith(("\t", "\r", "\n")) else text


@pytest.mark.parametrize("driver", ["duckdb", "psycopg", "psycopg2"])
def test_a_database_finds_the_formulas_that_python_finds(deliver, database_of, driver) -> None:
    database, some = database_of(driver), Random(1)
    database.create()
    signs = " \"';,\t\r\n\ufeff=+-@|a1.e\xa0\u2003\uff0b\\%\x01" + "\0" * (driver == "duckdb")
    texts = ["".join(some.choices(signs, k=some.randrange(8))) for _ in range(1_000)]
    parameter = database.placeholder
    sql = f'SELECT unnest(CAST({parameter} AS text[])) AS "=1%%"' if driver != "duckdb" else 'SELECT unnest(?) AS "=1%"'
    rows = rows_of(deliver(sql=sql, parameters=[texts], file_name="a.csv")["a.csv"])
    assert rows == [[escape_formula(text)] for text in ("=1%", *texts)]


def test_a_float_that_mysql_rounds_is_refused(task, deliver, database_of) -> None:
    database = database_of("mysqlclient")
    database.run("CREATE TABLE floats (value FLOAT)")
    database.run("INSERT INTO floats VALUES (16777216)")
    with pytest.raises(ResultNotWritable, match="rounds a FLOAT to six digits: CAST the column AS DOUBLE"):
        task(sql="SELECT value FROM floats", file_name="a.csv").run()
    sql = "SELECT CAST(value AS DOUBLE) AS value FROM floats"
    assert b"16777216.0" in deliver(sql=sql, file_name="a.csv")["a.csv"]


def test_a_connection_that_cannot_be_used_is_named_without_its_password(task, monkeypatch, postgres) -> None:
    value = {"conn_type": "postgres", "host": postgres.host, "schema": "hunter2-hunter2 missing", "login": "postgres"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({**value, "password": "hunter2-hunter2"}))
    with pytest.raises(QueryFailed, match="connection 'warehouse' cannot be opened") as caught:
        task(sql="SELECT 1", file_name="a.csv").run()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "fs"}))
    with pytest.raises(AirflowFailException, match="connection 'warehouse' is not a SQL connection"):
        task(sql="SELECT 1", file_name="a.csv").run()


NO_ROWS = "SELECT id FROM customers WHERE id > 9"


def test_an_empty_result_fails_or_skips_the_task(task, sandbox, sqlite_database) -> None:
    with pytest.raises(ResultEmpty, match=r"a\.csv: the query on connection 'warehouse' returned no rows"):
        task(sql=NO_ROWS, file_name="a.csv").run()
    with pytest.raises(AirflowSkipException):
        task(sql=NO_ROWS, file_name="a.csv", on_empty="skip").run()
    assert sandbox.requests() == []


def test_an_empty_result_is_sent_with_its_header(deliver, database) -> None:
    database.create()
    queries = [{"sql": NO_ROWS, "file_name": f"a.{suffix}"} for suffix in FORMATS]
    files = deliver(queries=queries, on_empty="send")
    assert (files["a.csv"], files["a.jsonl"]) == (b"id\r\n", b"")
    assert pq.read_table(io.BytesIO(files["a.parquet"])).column_names == ["id"]
    sheet = openpyxl.load_workbook(io.BytesIO(files["a.xlsx"])).active
    assert [[cell.value for cell in row] for row in sheet] == [["id"]]


def test_of_several_results_the_empty_one_is_left_out_and_other_files_come_along(
    task, sandbox, sqlite_database, tmp_path
) -> None:
    (tmp_path / "letter.txt").write_bytes(b"Dear Ann")
    queries = [
        {"sql": NO_ROWS, "file_name": "empty.csv"},
        {"sql": "SELECT id FROM customers WHERE id = :id", "parameters": {"id": 1}, "file_name": "one.csv"},
    ]
    delivery = task(queries=queries, on_empty="skip", files=str(tmp_path / "letter.txt"))
    transfer = delivery.run()
    assert delivered(sandbox, transfer) == {"one.csv": b"id\r\n1\r\n", "letter.txt": b"Dear Ann"}
    assert again(delivery)["id"] == transfer["id"]


@pytest.mark.parametrize("on_empty", ["fail", "skip", "send"])
@pytest.mark.parametrize("change", ["DELETE FROM customers", "DELETE FROM customers WHERE id = 1"])
def test_after_the_send_a_clear_refuses_another_result(task, sandbox, sqlite_database, change, on_empty) -> None:
    delivery = task(sql="SELECT id FROM customers", file_name="a.csv", on_empty=on_empty)
    transfer = delivery.run()
    assert again(delivery)["id"] == transfer["id"]
    sqlite_database.run(change)
    with pytest.raises(AirflowFailException, match="with other input"):
        again(delivery)
    assert sandbox.assert_sent_once() == transfer["id"]


WRONG: list[tuple[dict[str, Any], str]] = [  # beside those of the unit tests
    ({"sql": "SELECT 1", "queries": QUERIES}, "either sql and file_name, or queries"),
    ({"sql": "SELECT 1"}, "file_name of a query must be a string"),
    ({"sql": "SELECT 1", "file_name": "../a.csv"}, "a.csv"),
    ({"sql": " ", "file_name": "a.csv"}, "sql of a query must be a string"),
    ({"sql": "SELECT 1", "file_name": "a.csv", "parameters": "x"}, "parameters of a query"),
    ({"queries": []}, "queries must be a list"),
    ({"queries": [{"sql": "SELECT 1"}]}, "file_name of a query"),
    ({"queries": [{"sql": "SELECT 1", "file_name": "a.csv", "conn": "x"}]}, "a query is a mapping"),
    ({"queries": [QUERIES[0], QUERIES[0]]}, "two queries have the same file_name"),
]


def test_wrong_arguments_create_nothing(task, sandbox, sqlite_database) -> None:
    for arguments, message in WRONG:
        with pytest.raises((AirflowFailException, InvalidDelivery), match=message):
            task(retries=2, **arguments).run()
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


def test_a_dag_with_templates_and_sql_files(run_dag, connection, sandbox, sqlite_database, tmp_path) -> None:
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
