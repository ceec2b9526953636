"""Personal data by the commands: a person is found, erased everywhere and never brought back; age; what is stored."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from outbound_transfer.cli.console import main
from outbound_transfer.exceptions import DatabaseFailed
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from support import deliveries_table, memory
from support.airflow_names import AirflowFailException
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance
from support.warehouses import sqlite_hook

ADDRESS = "quasimodo+tag@example.com"
FILE = {"name": "a.csv", "content": "a"}
#: In any form that files are searched for.
TRACE = re.compile(rb"\bquasimodo(?:\+|%2b|\\u002b)tag(?:@|%40|\\+u0040)example\.com\b(?!\.au)", re.IGNORECASE)


@pytest.fixture
def sync(connection, sandbox, task, tmp_path, monkeypatch) -> Callable[[], None]:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "w.db")}))
    deliveries_table.use(monkeypatch, "warehouse")

    def sync() -> None:
        for operator in (TransfersToSqlOperator, EventFeedToSqlOperator):
            task(operator, operator.__name__, sql_conn_id="warehouse").run()
            sandbox.advance_clock(90)

    return sync


@pytest.fixture
def day(sync, sandbox, task) -> Callable[[], None]:
    """Deliver to a person, who picks up, and sync."""
    people = [{"email": "Quasimodo+Tag@example.com", "name": "Quasi M."}, "bob@example.com"]
    given = {"recipients": people, "files": FILE, "message": f"Dear {ADDRESS}", "subject": f"For {ADDRESS}"}

    def play() -> None:
        sandbox.pickup(task(DeliverFilesOperator, **given).run()["id"], "Quasimodo+Tag@example.com")
        sync()

    return play


def _found_in(file: Path, trace: re.Pattern[bytes]) -> set[tuple[str, str]]:
    hook, found = sqlite_hook(file), set()
    for (name,) in hook.fetch("SELECT name FROM sqlite_master WHERE type = 'table'"):
        columns = [column for (column,) in hook.fetch(f"SELECT name FROM pragma_table_xinfo('{name}')")]
        for row in hook.fetch(f'SELECT * FROM "{name}"'):
            values = (value if isinstance(value, bytes) else str(value).encode() for value in row)
            found |= {(name, column) for column, value in zip(columns, values, strict=True) if trace.search(value)}
    return found


def documented() -> set[tuple[str, str]]:
    """The columns of personal data: as the documentation has them, or of a table that it leaves out, the catalog."""
    table = deliveries_table.DELIVERIES
    found = {(f"outbound_transfer_{table.name}", each.name) for each in table.columns if each.info}
    for line in (REPOSITORY / "docs/tables.md").read_text().splitlines():
        if line.startswith("## "):
            table = line.strip("# `")
        elif line.rstrip(" |").endswith("Personal data"):
            found.add((table, line.split("`")[1]))
    return found


def test_every_column_with_a_person_is_marked_and_the_commands_erase_them(
    day, sync, tmp_path, capsys, monkeypatch
) -> None:
    day()
    file = tmp_path / "w.db"
    trace = re.compile(TRACE.pattern + rb"|Quasi M\.", re.IGNORECASE)
    found = _found_in(file, trace)
    assert found <= documented(), found - documented()
    in_tables = {name.removeprefix("outbound_transfer_") for name, _ in found}
    assert in_tables >= {"events", "transfers", "recipients", "deliveries"}

    capsys.readouterr()
    main(["privacy", "export", "--email", ADDRESS.upper()])
    text = capsys.readouterr().out
    found_in = json.loads(text)
    assert {each["location"] for each in found_in} == {"connection 'warehouse'"}
    tables = {name: rows for each in found_in for name, rows in each["tables"].items()}
    assert set(tables) == in_tables
    assert "bob@example.com" not in text
    main(["privacy", "erase", "--email", ADDRESS, "--dry-run", "--output", "json"])
    counted = json.loads(capsys.readouterr().out)
    assert {row["table"]: row["rows"] for row in counted} == {name: str(len(rows)) for name, rows in tables.items()}
    assert _found_in(file, trace) == found
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with pytest.raises(SystemExit, match="Nothing was changed"):
        main(["privacy", "erase", "--email", ADDRESS, "--sql-conn-id", "warehouse"])
    main(["privacy", "erase", "--email", ADDRESS, "--yes", "--output", "json", "--sql-conn-id", "warehouse"])
    assert json.loads(capsys.readouterr().out) == counted
    assert _found_in(file, trace) == set()

    main(["feed", "reset", "--to", "0", "--yes", "--sql-conn-id", "warehouse"])
    sync()  # the service still has the transfer and its events
    assert _found_in(file, trace) == set()
    capsys.readouterr()
    main(["feed", "verify", "--sql-conn-id", "warehouse"])
    assert "OK" in capsys.readouterr().out
    assert sqlite_hook(file).fetch("SELECT count(*) FROM outbound_transfer_rejected_lines") == [(0,)]
    main(["retention", "--older-than", "1d", "--yes", "--sql-conn-id", "warehouse"])
    assert capsys.readouterr().out == "Nothing deleted.\n"


@pytest.mark.parametrize("setting", ["names", "none"])
def test_recipients_are_stored_as_the_configuration_says(day, tmp_path, monkeypatch, setting) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", setting)
    day()
    hook = sqlite_hook(tmp_path / "w.db")
    stored = {email for (email,) in hook.fetch("SELECT email FROM outbound_transfer_recipients")}
    assert stored == ({"Quasimodo+Tag@example.com", "bob@example.com"} if setting == "names" else {""})
    of_deliveries = {table for table, _ in _found_in(tmp_path / "w.db", re.compile(rb"bob@example\.com"))}
    assert ("outbound_transfer_deliveries" in of_deliveries) == (setting == "names")
    assert hook.fetch("SELECT count(*) FROM outbound_transfer_deliveries") == [(1,)], "what was sent is known"


def _refuse(file: Path, event: str) -> None:
    """Let the database refuse a row and quote it, as PostgreSQL does."""
    rule = f"SELECT RAISE(ABORT, 'a rule was broken\nDETAIL: Failing row contains ({ADDRESS}).')"
    sqlite_hook(file).run(f"CREATE TRIGGER of_{event} BEFORE {event} ON outbound_transfer_recipients BEGIN {rule}; END")


def test_an_error_of_the_database_has_nothing_of_the_row(day, task, tmp_path, caplog) -> None:
    day()
    _refuse(tmp_path / "w.db", "UPDATE")
    with pytest.raises(SystemExit, match="IntegrityError: a rule was broken$") as of_command:
        main(["privacy", "erase", "--email", ADDRESS, "--yes", "--sql-conn-id", "warehouse"])
    for table in ("recipients", "transfers"):
        sqlite_hook(tmp_path / "w.db").run(f"DELETE FROM outbound_transfer_{table}")
    _refuse(tmp_path / "w.db", "INSERT")
    caplog.clear()
    with pytest.raises(DatabaseFailed, match="The database failed with IntegrityError: a rule was broken$") as of_task:
        task(TransfersToSqlOperator, "transfers", sql_conn_id="warehouse").run()
    text = "".join(line for each in (of_command, of_task) for line in traceback.format_exception(each.value))
    assert not TRACE.search(f"{text}{caplog.text}".encode())


@pytest.fixture
def kept(task, tmp_path, monkeypatch) -> Callable[..., FakeTaskInstance]:
    """Make a task about the person, whose row is in a database."""
    memory.keep_keys_in(monkeypatch, json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "w.db")}))
    return lambda operator, task_id="task", **given: memory.kept_in_a_database(task(operator, task_id, **given))


def erase() -> None:
    main(["privacy", "erase", "--email", ADDRESS, "--yes"])


TO_A_PERSON = {"subject": ADDRESS, "recipients": [ADDRESS]}


def test_a_delivery_whose_data_was_erased_is_not_sent_again(kept, sandbox, caplog) -> None:
    task = kept(DeliverFilesOperator, files=FILE, **TO_A_PERSON)
    draft = kept(CreateTransferOperator, "create", **TO_A_PERSON)
    sent, unsent = task.run()["id"], draft.run()
    with pytest.raises(SystemExit, match=f"Not erased, as they may still be sent: transfers {unsent}[.]"):
        erase()
    task.clear()
    assert task.run()["id"] == sent == sandbox.assert_sent_once()
    assert "are not compared" in caplog.text
    draft.clear()
    assert draft.run() != unsent, "its row was left as it is"


def test_an_erased_row_still_keeps_its_twin_from_being_sent(kept, sandbox) -> None:
    first, twin = (kept(DeliverFilesOperator, files=FILE, **TO_A_PERSON) for _ in range(2))
    first.map_index, twin.map_index, twin.clear_number = 0, 1, 1
    first.run()
    erase()
    first.clear()
    first.run()
    with pytest.raises(AirflowFailException, match="has the same subject, recipients and files"):
        twin.run()
    sandbox.assert_sent_once()


def test_an_attaching_task_of_an_erased_row_attaches_nothing_again(kept, sandbox) -> None:
    draft = kept(CreateTransferOperator, "create", **TO_A_PERSON).run()
    attach = kept(AttachFilesOperator, "attach", transfer_id=draft, files=FILE)
    attach.run()
    kept(SendTransferOperator, "send", transfer_id=draft).run()
    erase()
    attach.clear()
    assert [file["name"] for file in attach.run()] == ["a.csv"]
    sandbox.assert_sent_once()
