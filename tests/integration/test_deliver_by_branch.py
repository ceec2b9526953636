"""The example ``deliver_by_branch``: each branch gets its own rows, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from support import memory
from support.postgres import Database
from support.repository import REPOSITORY

pytestmark = pytest.mark.e2e

SOURCE = (REPOSITORY / "dags" / "deliver_by_branch.py").read_text()
NORTH, SOUTH = "north@example.com", "south@example.com"


@pytest.fixture
def sales(postgres: Database, connection: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AIRFLOW_CONN_SALES", postgres.airflow_connection)
    memory.keep_keys_in(monkeypatch, postgres.airflow_connection)
    with closing(postgres.connect(autocommit=True)) as database:
        database.execute("CREATE TABLE orders (id integer, month text, branch text, total integer)")
        database.execute("CREATE TABLE branch_contacts (branch text, email text)")
        database.execute("INSERT INTO orders VALUES (1, '2026-01', 'north', 7), (2, '2026-01', 'south', 8)")
        database.execute("INSERT INTO orders VALUES (3, '2026-01', 'north', 9), (4, '2026-02', 'west', 1)")
        database.execute(f"INSERT INTO branch_contacts VALUES ('north', '{NORTH}'), ('south', '{SOUTH}')")
        yield database


def delivered(sandbox: Any) -> dict[str, tuple[str, bytes]]:
    """Return recipient and content of each transfer that was billed, by the name of its file."""
    sent = [sandbox.transfer(each) for each in sandbox.sent()]
    assert len({one["files"][0]["name"] for one in sent}) == len(sent), "a branch was sent more than once"
    return {
        file["name"]: (recipient["email"], sandbox.stored_content(one["id"], file["id"]))
        for one in sent
        for file in one["files"]
        for recipient in one["recipients"]
    }


ROWS = {
    "orders-2026-01-north.csv": (NORTH, b"id,month,branch,total\r\n1,2026-01,north,7\r\n3,2026-01,north,9\r\n"),
    "orders-2026-01-south.csv": (SOUTH, b"id,month,branch,total\r\n2,2026-01,south,8\r\n"),
}


def test_each_branch_gets_its_rows_and_a_second_run_sends_to_the_new_branch_alone(run_dag, sales, sandbox) -> None:
    run = run_dag(SOURCE)
    assert run.state == "success", run.states()
    assert delivered(sandbox) == ROWS
    assert run.xcom("summary") == {"transfers": 2, "bytes": sum(len(rows) for _, rows in ROWS.values())}
    # Map indexes move by one: keys, not indexes, say what was delivered.
    sales.execute("INSERT INTO orders VALUES (5, '2026-01', 'east', 3)")
    sales.execute("INSERT INTO branch_contacts VALUES ('east', 'east@example.com')")
    assert run_dag(SOURCE).state == "success"
    east = ("east@example.com", b"id,month,branch,total\r\n5,2026-01,east,3\r\n")
    assert delivered(sandbox) == {**ROWS, "orders-2026-01-east.csv": east}


@pytest.mark.parametrize("branch", ["'east'", "NULL"])
def test_a_branch_without_recipients_stops_the_run_before_anything_is_sent(run_dag, sales, sandbox, branch) -> None:
    sales.execute(f"INSERT INTO orders VALUES (5, '2026-01', {branch}, 3)")
    run = run_dag(SOURCE)
    assert run.states()["deliveries"] == "failed"
    assert sandbox.requests() == []


def test_the_name_of_a_branch_is_only_a_value(run_dag, sales, sandbox) -> None:
    """Nobody gets another branch's rows; a name that cannot be a file's fails its branch alone."""
    names, refused = ["{{ 7 * 6 }}", "south' OR '1'='1", "so%sth", "South"], ["../south", "south\u202e"]
    for name in names + refused:
        sales.execute("INSERT INTO orders VALUES (5, '2026-01', %s, 3)", [name])
        sales.execute("INSERT INTO branch_contacts VALUES (%s, 'odd@example.com')", [name])
    run = run_dag(SOURCE)
    rows = {name: f"id,month,branch,total\r\n5,2026-01,{name},3\r\n".encode() for name in names}
    odd = {f"orders-2026-01-{name}.csv": ("odd@example.com", content) for name, content in rows.items()}
    assert delivered(sandbox) == {**ROWS, **odd}
    assert run.state == "failed"
    failed = [task for task, state in run.states().items() if state == "failed"]
    assert len(failed) == len(refused) + 1, "and the summary"
