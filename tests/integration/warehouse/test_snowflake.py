"""Snowflake: the real hook, and the real connector or the one that fakesnow puts in its place.

fakesnow is case-blind and enforces keys. What rests on neither is seen in the statements themselves.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from outbound_transfer.protocol.models import Transfer
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.dialects.snowflake import SnowflakeDialect
from outbound_transfer.warehouse.errors import CursorMoved, InvalidName, UnreliableTable, UnsupportedWarehouse
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.maintenance import SqlFeedMaintenance
from outbound_transfer.warehouse.schema import (
    CLUSTER,
    LEDGER,
    LEDGER_RECIPIENTS,
    MEMORY_GROUP,
    TableGroup,
    ensure_schema,
)
from outbound_transfer.warehouse.tables import EVENTS, TABLES, with_names
from outbound_transfer.warehouse.timestamps import utc_now
from outbound_transfer.warehouse.transfers import TransferTables
from support.feed_pages import CONSISTENT, PAGES, Fault, Faulty, WatchedConnection, event, events, page
from support.snowflake import CONNECTION, Recorder, fake_snowflake, fetch, snowflake_server
from support.tasks import FakeTaskInstance, SimulatedClock

# Of the emulator, about how it reads its own database.
pytestmark = pytest.mark.filterwarnings("ignore:Arrow output:UserWarning")

IDS = "SELECT event_id FROM outbound_transfer_events ORDER BY cursor_from, line_number"


@pytest.fixture(autouse=True)
def connection_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", CONNECTION)


@pytest.fixture
def snow() -> Iterator[Recorder]:
    with fake_snowflake():
        yield Recorder()


@pytest.fixture
def feed(snow: Recorder) -> EventStore:
    store = EventStore(snow.open(), "acme")
    assert store.get_or_create_cursor() == 0
    return store


def ids() -> list[str]:
    return [each for (each,) in fetch(IDS)]


# ------------------------------------------------------------------------------------------------------------- pages


def test_pages_are_loaded_once_and_a_page_that_was_loaded_moves_nothing(feed: EventStore) -> None:
    assert [feed.load_page(each) for each in PAGES.values()] == [3, 2]
    with pytest.raises(CursorMoved):
        feed.load_page(PAGES[4])
    assert feed.read_cursor() == 6
    assert ids() == [f"e{number}" for number in range(5)]
    maintenance = SqlFeedMaintenance(feed)
    assert list(maintenance.find_problems()) == []
    assert (maintenance.status().events, maintenance.status().rejected) == (5, 1)


def test_a_feed_that_is_read_again_adds_no_rows(feed: EventStore) -> None:
    for each in PAGES.values():
        feed.load_page(each)
    assert SqlFeedMaintenance(feed).reset(0) == (6, 0)
    assert [feed.load_page(each) for each in PAGES.values()] == [0, 0]
    assert len(ids()) == 5
    assert list(SqlFeedMaintenance(feed).find_problems()) == []


def test_an_id_twice_in_a_page_is_one_event(feed: EventStore) -> None:
    assert feed.load_page(page(0, event(1), event(2), event(1))) == 2
    assert ids() == ["e1", "e2"]


def test_ids_that_are_almost_the_same_are_different_events(feed: EventStore) -> None:
    names = ["a", "A", "a ", "á", "🎉", "🚀", "日本", "it's 100%", "back\\slash", '"', "'"]
    assert feed.load_page(page(0, *(event(0, event_id=name) for name in names))) == len(names)
    assert ids() == names


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_fault_at_any_statement_leaves_whole_pages(after: bool, snow: Recorder) -> None:
    EventStore(snow.open(), "first").get_or_create_cursor()
    for at in range(1 + after, 100, 3):
        account, faulty = f"acme {at}", Faulty(at, after)
        with suppress(Fault):
            _load_all(snow.open(), account, faulty)
        if not faulty.met:
            break
        assert _state_of(account) in CONSISTENT, faulty.met
        _load_all(snow.open(), account, Faulty(0, after))
        assert _state_of(account) == CONSISTENT[-1], faulty.met
    assert 20 < at < 99


def _load_all(warehouse: Warehouse, account: str, faulty: Faulty) -> None:
    connect = warehouse.connect
    warehouse.connect = lambda: WatchedConnection(connect(), faulty)
    store = EventStore(warehouse, account)
    cursor = store.get_or_create_cursor()
    while cursor in PAGES:
        store.load_page(PAGES[cursor])
        cursor = PAGES[cursor].next_cursor


def _state_of(account: str) -> tuple[int, list[str], int]:
    where = f"WHERE account = '{account}'"
    cursors = fetch(f"SELECT cursor FROM outbound_transfer_feed_cursor {where}")
    assert len(cursors) <= 1
    found = fetch(f"SELECT event_id FROM outbound_transfer_events {where} ORDER BY cursor_from, line_number")
    rejected = fetch(f"SELECT raw FROM outbound_transfer_rejected_lines {where}")
    return cursors[0][0] if cursors else 0, [each for (each,) in found], len(rejected)


# ------------------------------------------------------------------------------------------------------------- names


def test_every_name_is_one_that_an_analyst_can_type_without_quotes(snow: Recorder) -> None:
    store = EventStore(snow.open(schema="analytics"), "acme")
    store.get_or_create_cursor()
    for each in PAGES.values():
        store.load_page(each)
    SqlFeedMaintenance(store).status()
    assert {"ANALYTICS", "OUTBOUND_TRANSFER_EVENTS", "TIMESTAMP", "CURSOR", "TYPE"} <= snow.names()
    assert {name for name in snow.names() if name != name.upper()} == set()


def test_columns_need_no_quotes_though_some_are_words_of_sql(feed: EventStore) -> None:
    feed.load_page(PAGES[0])
    columns = "account, type, timestamp, occurred_at, data, raw, cursor_from, line_number"
    assert len(fetch(f"SELECT {columns} FROM analytics.outbound_transfer_events")) == 3
    assert fetch("SELECT cursor, updated_at > '2020-01-01' FROM Outbound_Transfer_Feed_Cursor") == [(4, True)]


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("analytics", '"ANALYTICS"'),
        ("Analytics_2$", '"ANALYTICS_2$"'),
        ('"analytics"', '"analytics"'),
        ("my schema", '"my schema"'),
        ("2nd", '"2nd"'),
        ("größe", '"größe"'),
        ('a"b', '"a""b"'),
        (EVENTS.columns["type"].name, '"TYPE"'),
    ],
)
def test_a_name_is_quoted_as_snowflake_reads_it(name: str, quoted: str) -> None:
    assert SnowflakeDialect().quote(name) == quoted


def test_a_name_that_the_connector_would_change_is_refused(snow: Recorder) -> None:
    with pytest.raises(InvalidName, match="contains the character %"):
        snow.open(prefix="100%_")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_is_created_with_its_comments_in_one_statement(table: Any) -> None:
    (statement,) = SnowflakeDialect().create_statements(with_names(table, "prefix_", None))
    assert f'"PREFIX_{table.name.upper()}"' in statement
    assert "COMMENT = '" in statement
    if table.name == "schema_version":
        assert "AS SELECT 'lock'" in statement
    else:
        assert statement.count(" COMMENT '") == len(table.columns)


# ------------------------------------------------------------------------------------------------------------ values


def test_data_is_a_variant_and_times_are_timestamps(feed: EventStore) -> None:
    line = event(1, data={"b": {"a": [1.5, "x\\\n'%s"]}}, timestamp="2026-01-02T03:04:05.000006+02:00", more=[None])
    feed.load_page(page(0, line))
    values = "data:b.a[0]::FLOAT, data:b.a[1]::VARCHAR, extra_fields:more[0] IS NULL, raw"
    assert fetch(f"SELECT {values} FROM outbound_transfer_events") == [(1.5, "x\\\n'%s", False, None)]
    types = fetch("SELECT column_name, data_type FROM information_schema.columns WHERE table_name LIKE '%EVENTS'")
    wanted = {"DATA": "VARIANT", "EXTRA_FIELDS": "VARIANT", "OCCURRED_AT": "TIMESTAMP_TZ", "LOADED_AT": "TIMESTAMP_TZ"}
    assert wanted.items() <= dict(types).items()
    ((at,),) = fetch("SELECT to_varchar(occurred_at, 'YYYY-MM-DD HH24:MI:SS.FF6') FROM outbound_transfer_events")
    assert at.startswith("2026-01-02 01:04:05.000006")


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ('{"n": 1}', True),
        ('{"n": 1.25, "at": "12345678901234567890123456789012345678901234567890"}', True),
        ('{"n": 12345678901234567890123456789012345678}', True),
        ('{"n": 123456789012345678901234567890123456789}', False),
        ("[-0.12345678901234567890123456789012345678]", False),
        ("1e2", True),
        ("1.5E-7", True),
        ("1.2345678901234567e3", False),
        ("1e300", False),
        ('"0e999"', True),
        ('{"id": "12e4", "n": 3}', True),
        ("null", True),
    ],
)
def test_a_variant_keeps_the_value_of_a_number(text: str, keeps: bool) -> None:
    assert SnowflakeDialect().keeps_json(text) is keeps


def test_an_event_whose_number_a_variant_would_change_is_stored_as_its_line(feed: EventStore) -> None:
    number = "1234567890123456789012345678901234567890.5"
    line = f'{{"event_id": "e1", "type": "t", "data": {{"n": {number}}}}}'.encode()
    assert feed.load_page(page(0, event(0), line, event(2))) == 3
    found = fetch("SELECT data IS NULL, raw FROM outbound_transfer_events ORDER BY line_number")
    assert found == [(False, None), (True, line.decode()), (False, None)]


# ------------------------------------------------------------------------------------------------------------- sizes


def test_a_page_is_inserted_in_statements_of_less_than_a_megabyte(feed: EventStore, snow: Recorder) -> None:
    text = "\\'🎉" * 2_000
    lines = [event(number, data={"text": text}) for number in range(120)]
    assert feed.load_page(page(0, *lines)) == 120
    sizes = [len(each.encode()) for each in snow.statements]
    assert sum(sizes) > 2_000_000
    assert max(sizes) < 1_000_000
    assert fetch("SELECT count(*), min(data:text::VARCHAR) FROM outbound_transfer_events") == [(120, text)]


def test_lines_of_more_than_a_megabyte_are_stored_in_parts(feed: EventStore, snow: Recorder) -> None:
    long = event(1, data={"text": "'🎉" * 120_000})
    junk = b"\xff" * 1_100_000
    assert feed.load_page(page(0, event(0), long, junk, event(2))) == 3
    assert max(len(each.encode()) for each in snow.statements) < 1_000_000
    assert fetch("SELECT raw FROM outbound_transfer_events WHERE raw IS NOT NULL") == [(long.decode(),)]
    assert [bytes(raw) for (raw,) in fetch("SELECT raw FROM outbound_transfer_rejected_lines")] == [junk]
    assert feed.read_cursor() == 4


# ------------------------------------------------------------------------------------------ keys that nobody checks


def test_whatever_writes_rows_with_a_key_first_takes_the_lock(feed: EventStore, snow: Recorder) -> None:
    for each in PAGES.values():
        feed.load_page(each)
    SqlFeedMaintenance(feed).reset(0)
    SqlFeedMaintenance(feed).replay_rejected_lines()
    _save_transfers(snow.open())
    written = [each for each in snow.transactions() if any(one.startswith("INSERT") for one in each)]
    assert len(written) >= 8
    for statements in written:
        assert statements[0].startswith('UPDATE "OUTBOUND_TRANSFER_SCHEMA_VERSION"'), statements
        assert statements[0].endswith("\"COMPONENT\" = 'lock'")


def test_first_runs_at_once_leave_one_cursor(snow: Recorder) -> None:
    start = threading.Barrier(4)

    def run() -> None:
        store = EventStore(snow.open(), "acme")
        start.wait()
        for _ in range(200):
            try:
                store.get_or_create_cursor()
                return
            except Exception:  # the emulator refuses a second writer, where Snowflake lets it wait
                time.sleep(0.05)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert fetch("SELECT account, cursor FROM outbound_transfer_feed_cursor") == [("acme", 0)]
    components = fetch("SELECT component FROM outbound_transfer_schema_version ORDER BY component")
    assert components == [("feed",), ("lock",)]


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM {table} WHERE component = 'lock'",
        "INSERT INTO {table} SELECT * FROM {table} WHERE component = 'lock'",
    ],
    ids=["missing", "doubled"],
)
def test_without_the_row_that_is_locked_nothing_is_written(change: str, feed: EventStore) -> None:
    with feed.warehouse.transaction() as tx:
        tx.execute(change.format(table="outbound_transfer_schema_version"))
    with pytest.raises(UnreliableTable, match="'lock'"):
        feed.load_page(PAGES[0])
    assert (feed.read_cursor(), ids()) == (0, [])


def test_a_session_waits_for_a_lock_longer_than_snowflake_keeps_a_dead_one(snow: Recorder) -> None:
    warehouse = snow.open()
    warehouse.dialect.configure_connection(warehouse.connect())
    (statement,) = snow.statements
    assert "AUTOCOMMIT = FALSE" in statement
    assert "LOCK_TIMEOUT = 360" in statement
    SnowflakeDialect().with_timeout(9.5).configure_connection(warehouse.connect())
    assert "LOCK_TIMEOUT = 10, STATEMENT_TIMEOUT_IN_SECONDS = 10," in snow.statements[-1]


# ------------------------------------------------------------------------------------------------------- other tables


@pytest.mark.parametrize("group", [LEDGER, LEDGER_RECIPIENTS, MEMORY_GROUP, CLUSTER], ids=lambda group: group.name)
def test_tables_that_every_task_writes_are_refused(group: TableGroup, snow: Recorder) -> None:
    with pytest.raises(UnsupportedWarehouse, match=rf"not the tables of '{group.name}'.*Use PostgreSQL"):
        ensure_schema(snow.open(), group, utc_now())
    assert snow.statements == []


def test_transfers_are_stored_and_updated(snow: Recorder) -> None:
    tables = _save_transfers(snow.open())
    assert tables.sync_state().outstanding == {"t1": "2026-01-01T00:00:00.000000Z"}
    assert tables.newest_ids(5) == ["t1"]
    assert fetch("SELECT status, recipient_count FROM outbound_transfer_transfers") == [("sent", 1)]
    assert fetch("SELECT email FROM outbound_transfer_recipients") == [("ann@example.com",)]


def _save_transfers(warehouse: Warehouse) -> TransferTables:
    tables = TransferTables(warehouse, "acme", "default")
    tables.sync_state()
    fields = {"id": "t1", "status": "sent", "sent_at": "2026-01-01T00:00:00Z", "subject": "it's 1%"}
    transfer = msgspec.convert({**fields, "recipients": [{"email": "ann@example.com"}]}, Transfer)
    assert tables.save([transfer], utc_now()) == 1
    assert tables.save([transfer], utc_now()) == 0
    tables.mark_listed("2026-01-01T00:00:00.000000Z")
    return tables


# --------------------------------------------------------------------------------------------------------- whole runs


def test_the_operator_loads_the_feed_and_says_first_that_it_is_a_preview(
    snow: Recorder, connection: str, sandbox: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox.add_events(25)
    task = FakeTaskInstance(
        lambda: EventFeedToSqlOperator(task_id="load", sql_conn_id="warehouse", schema="analytics"),
        SimulatedClock(sandbox),
    )
    summary = task.run()
    assert (summary["pages"], summary["events"], summary["new_events"]) == (1, 25, 25)
    assert fetch("SELECT count(*) FROM outbound_transfer_events") == [(25,)]
    own = [each for each in caplog.records if each.name.startswith("outbound_transfer.")]
    assert "preview" in own[0].getMessage()


def test_the_real_connector_loads_the_same() -> None:
    with snowflake_server():
        recorder = Recorder()
        store = EventStore(recorder.open(prefix="over_http_"), "acme")
        assert store.get_or_create_cursor() == 0
        hostile = event(3, data={"text": "it's \\ 100% %s \n 🎉"}, event_id="ä'\\%s")
        assert store.load_page(page(0, *events(0, 3), hostile, b"junk \xff")) == 4
        with pytest.raises(CursorMoved):
            store.load_page(page(0, event(1)))
        maintenance = SqlFeedMaintenance(store)
        assert (maintenance.status().cursor, maintenance.status().rejected) == (5, 1)
        assert list(maintenance.find_problems()) == []
        stored = fetch("SELECT data, event_id FROM over_http_events ORDER BY line_number")
        assert json.loads(stored[3][0]) == {"text": "it's \\ 100% %s \n 🎉"}
        assert stored[3][1] == "ä'\\%s"
        assert [bytes(raw) for (raw,) in fetch("SELECT raw FROM over_http_rejected_lines")] == [b"junk \xff"]
        assert type(store.warehouse.connect().inner).__module__ == "snowflake.connector.connection"
