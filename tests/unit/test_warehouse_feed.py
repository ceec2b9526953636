"""Landing pages in real databases (design: promise 5.3): SQLite files, and PostgreSQL over both its drivers."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg.rows
import psycopg2.extras
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outbound_transfer.protocol.exchange import Answer
from outbound_transfer.protocol.feed import Page, read_page
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.errors import CursorMoved, InvalidCursor, InvalidName, KnownRow
from outbound_transfer.warehouse.feed import FeedTables
from outbound_transfer.warehouse.tables import EVENTS, Table
from support.patience import PATIENCE
from support.postgres import postgres, postgres_server  # noqa: F401
from support.warehouses import DRIVERS, Hook, any_hook, hook, hook_of, memory, sqlite_hook  # noqa: F401


def tables(hook: Any, feed: str = "acme", **options: Any) -> FeedTables:
    return FeedTables(Warehouse(hook, **options), feed)


def page(cursor: int, *lines: bytes, next_cursor: int | None = None, has_more: bool = False) -> Page:
    headers = {
        "content-type": "application/x-ndjson",
        "x-next-cursor": str(cursor + len(lines) if next_cursor is None else next_cursor),
        "x-has-more": str(has_more).lower(),
    }
    return read_page(Answer(200, headers, b"".join(line + b"\n" for line in lines)), cursor=cursor)


def event(number: int, **fields: Any) -> bytes:
    base = {"event_id": f"e{number}", "type": "transfer_sent", "timestamp": "2026-01-01T00:00:00Z", "data": {}}
    return json.dumps(base | fields).encode()


def events(start: int, end: int) -> tuple[bytes, ...]:
    return tuple(event(number) for number in range(start, end))


IDS = "SELECT event_id FROM outbound_transfer_events ORDER BY cursor_from, line"
CURSOR = "SELECT cursor FROM outbound_transfer_feed_cursor"
TABLE_NAMES = ("events", "feed_cursor", "feed_polls", "rejected_lines", "schema")
REJECTED = "SELECT raw FROM outbound_transfer_rejected_lines ORDER BY cursor_from, line"


# --------------------------------------------------------------------------------------------------- what is landed


def test_a_page_is_landed_with_its_cursor(any_hook: Hook) -> None:
    feed = tables(any_hook)
    assert feed.cursor() == 0
    assert feed.land(page(0, *events(0, 2), b"junk \xff", event(2))) == 3
    assert feed.cursor() == 4
    assert feed.land(page(4)) == 0
    assert feed.land(page(4, event(2), event(3))) == 1
    assert any_hook.fetch(IDS) == [("e0",), ("e1",), ("e2",), ("e3",)]
    assert any_hook.fetch(CURSOR) == [(6,)]
    ((raw,),) = any_hook.fetch(REJECTED)
    assert bytes(raw) == b"junk \xff"
    assert any_hook.fetch("SELECT feed, cursor_from, line FROM outbound_transfer_rejected_lines") == [("acme", 0, 3)]


def test_postgres_keeps_instants_and_json(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    feed = tables(hook)
    feed.cursor()
    feed.land(page(0, event(1, timestamp="2026-01-01T02:00:00+02:00", data={"size": 7}), event(2, timestamp=5)))
    assert hook.fetch(
        "SELECT event_id, timestamp, occurred_at = '2026-01-01T00:00Z', data ->> 'size', landed_at <= now() "
        "FROM outbound_transfer_events ORDER BY line"
    ) == [("e1", "2026-01-01T02:00:00+02:00", True, "7", True), ("e2", "5", None, None, True)]


AWKWARD = ['"\\u0000"', '"\\ud800"', "1e999", '{"a":1,"a":2}', "9" * 400, '{"\\udfff":[ 1 ]}']


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize("field", ["data", "else", "\\u0000"])
def test_what_a_json_column_would_refuse_or_change_is_kept_as_it_came(hook: Hook, value: str, field: str) -> None:
    feed = tables(hook)
    feed.cursor()
    line = '{"event_id":"e", "type":"t","' + field + '":' + value + "}"
    assert feed.land(page(0, line.encode(), event(1, data={"a": 1}))) == 2
    rows = hook.fetch("SELECT data IS NULL, other, raw FROM outbound_transfer_events ORDER BY line")
    assert rows == [(True, None, line), (False, None, None)]


def _memory(field: str) -> int:
    """Bytes that this process holds (VmRSS), or held at most (VmHWM) since the peak was last reset."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) * 1024


@pytest.mark.parametrize("name", ["sqlite", "duckdb", "psycopg"])
def test_a_line_of_50_megabytes_lands_in_bounded_memory(hook_of: Callable[[str], Hook], name: str) -> None:
    hook, size = hook_of(name), 50 * 1024 * 1024
    feed = tables(hook)
    feed.cursor()
    line = b'{"event_id": 1, "type": "t", "data": "' + b"\\n" * (size // 2) + b'"}'
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    assert feed.land(page(0, line, event(2))) == 2
    assert _memory("VmHWM") - before < 16 * size
    # Its JSON, quotes included; PostgreSQL's jsonb is written as text again.
    column = "CAST(data AS text)" if hook.dialect_name == "postgresql" else "data"
    assert hook.fetch(f"SELECT length({column}) FROM outbound_transfer_events ORDER BY line")[0] == (size + 2,)


texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
hostile = st.sampled_from(
    ['"\\ud800"', '"\\u0000"', "-0", "1e99999", "9" * 400, '"\\/"', '"\x7f"', "[" * 900 + "]" * 900]
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(values.map(json.dumps) | hostile, texts, texts), min_size=1, max_size=5))
def test_a_warehouse_takes_whatever_the_feed_calls_an_event(hook: Hook, rows: list[tuple[str, str, str]]) -> None:
    feed = tables(hook)
    cursor = feed.cursor()
    lines = [
        f'{{"event_id":{number},"type":{json.dumps(kind)},"timestamp":{json.dumps(stamp)},"data":{data}}}'.encode()
        for number, (data, kind, stamp) in enumerate(rows, cursor)
    ]
    read = page(cursor, *lines)
    assert feed.land(read) == len(read.events)
    landed = hook.fetch(
        f"SELECT type, timestamp, CAST(data AS text), raw FROM outbound_transfer_events WHERE cursor_from = {cursor}"
        " ORDER BY line"
    )
    assert [row[:2] for row in landed] == [(event.type, event.timestamp) for event in read.events]
    for (_, _, data, raw), event in zip(landed, read.events, strict=True):
        assert raw == event.raw
        assert (data is None and raw == lines[event.line - 1].decode()) if raw else _same(data, event.data, hook)


def _same(landed: str, came: str, hook: Hook) -> bool:
    """To the byte; PostgreSQL keeps values, and not their spelling."""
    if hook.dialect_name != "postgresql":
        return landed == came
    exact = {"parse_float": Decimal, "parse_int": Decimal}
    return json.loads(landed, **exact) == json.loads(came, **exact)


# -------------------------------------------------------------------------------------------------- all or nothing


class Fault(Exception):
    pass


@dataclass
class Faulty:
    """Makes a warehouse's n-th statement (from 1, commits among them) fail: before it is run, or after."""

    at: int
    after: bool
    count: int = 0
    met: list[str] = field(default_factory=list)

    def tables(self, hook: Hook) -> FeedTables:
        feed = tables(hook)
        connect = feed.warehouse.connect
        feed.warehouse.connect = lambda: _Watched(connect(), self)
        return feed

    def step(self, what: str, run: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count != self.at:
            return run()
        self.met.append(what)
        if self.after:
            run()
        raise Fault(what)


class _Watched:
    """A connection or cursor that reports each statement."""

    def __init__(self, inner: Any, faulty: Faulty) -> None:
        self.__dict__.update(inner=inner, faulty=faulty)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "cursor":
            return lambda: _Watched(found(), self.faulty)
        if name in ("execute", "executemany", "copy", "copy_expert", "commit"):
            return lambda *args: self.faulty.step(str(args[0]) if args else name, lambda: found(*args))
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


def _state(hook: Hook) -> tuple[int, list[str], int]:
    """Cursor, event ids and the count of rejected lines; nothing where the tables are not there."""
    try:
        ((cursor,),) = hook.fetch(CURSOR) or [(0,)]
        return cursor, [i for (i,) in hook.fetch(IDS)], len(hook.fetch(REJECTED))
    except (
        sqlite3.OperationalError,
        duckdb.CatalogException,
        psycopg.errors.UndefinedTable,
        psycopg2.errors.UndefinedTable,
    ):
        return 0, [], 0


def _drain(feed: FeedTables, feed_pages: dict[int, Page]) -> None:
    while (cursor := feed.cursor()) in feed_pages:
        feed.land(feed_pages[cursor])


PAGES = {0: page(0, *events(0, 3), b"junk"), 4: page(4, *events(3, 5))}
CONSISTENT = [(0, [], 0), (4, ["e0", "e1", "e2"], 1), (6, ["e0", "e1", "e2", "e3", "e4"], 1)]


def _empty(hook: Hook) -> None:
    for table in TABLE_NAMES:
        hook.run(f"DROP TABLE IF EXISTS outbound_transfer_{table}")


def _rewind(hook: Hook) -> None:
    for table in ("events", "rejected_lines", "feed_polls"):
        hook.run(f"DELETE FROM outbound_transfer_{table}")
    hook.run("UPDATE outbound_transfer_feed_cursor SET cursor = 0")


#: In SQLite, at the statements that make the tables too; elsewhere they are there, which saves most of the time.
#: DuckDB, the slowest, has its faults after a statement in `make kills-ingest`.
@pytest.mark.parametrize(
    ("name", "after"),
    [(name, after) for name in ("sqlite", "psycopg", "psycopg2", "psycopg-autocommit") for after in (False, True)]
    + [("duckdb", False)],
)
def test_a_fault_at_any_statement_lands_a_page_whole_or_not_at_all(
    hook_of: Callable[[str], Hook], name: str, after: bool
) -> None:
    hook = hook_of(name)
    met = []
    if name != "sqlite":
        tables(hook).cursor()
    for at in range(1, 100):
        (_empty if name == "sqlite" else _rewind)(hook)
        faulty = Faulty(at, after)
        try:
            _drain(faulty.tables(hook), PAGES)
        except Fault:
            assert _state(hook) in CONSISTENT, faulty.met
            _drain(tables(hook), PAGES)
        assert _state(hook) == CONSISTENT[-1]
        met += faulty.met
        if not faulty.met:
            break
    rows = "INSERT INTO" if name in ("sqlite", "duckdb") else "COPY"
    for kind in (*(["CREATE TABLE"] if name == "sqlite" else []), "UPDATE", "SELECT", rows, "commit"):
        assert any(statement.startswith(kind) for statement in met), f"no fault was met in {kind}"


def test_a_connection_that_is_killed_in_the_middle_lands_nothing(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    tables(hook).cursor()
    statements = []

    class Killing(Faulty):
        def step(self, what: str, run: Callable[[], Any]) -> Any:
            statements.append(what)
            if what.startswith("COPY"):
                hook.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
            return run()

    with pytest.raises(psycopg.OperationalError):
        Killing(0, after=False).tables(hook).land(PAGES[0])
    assert any(statement.startswith("UPDATE") for statement in statements)
    assert _state(hook) == CONSISTENT[0]


# ---------------------------------------------------------------------------------------------------- many readers


def _at_once(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    barrier = threading.Barrier(len(tasks))

    def started(task: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return task()
        except CursorMoved as moved:
            return moved

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(started, tasks))


def test_tables_can_be_created_by_many_at_once(hook: Hook) -> None:
    for _ in range(3):
        assert _at_once([tables(hook).cursor] * 8) == [0] * 8
        assert hook.fetch(CURSOR) == [(0,)]
        _empty(hook)


def test_of_readers_that_race_for_a_page_one_lands_it(hook: Hook) -> None:
    feed = tables(hook)
    feed.cursor()
    for number in range(5):
        start = number * 100
        raced = page(start, *events(start, start + 100))
        # Each has the events in an order of its own, as a server may give them.
        outcomes = _at_once([lambda raced=raced: tables(hook).land(raced)] * 6)  # type: ignore[misc]
        assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["CursorMoved"] * 5 + ["int"]
        assert feed.cursor() == start + 100
    assert len(hook.fetch(IDS)) == 500


def test_readers_that_drain_at_once_land_everything_once(hook: Hook) -> None:
    pages = {start: page(start, *events(start, start + 10)) for start in range(0, 200, 10)}

    def drain() -> None:
        feed = tables(hook)
        while (cursor := feed.cursor()) in pages:
            try:
                feed.land(pages[cursor])
            except CursorMoved:
                continue

    _at_once([drain] * 4)
    assert [row[0] for row in hook.fetch(IDS)] == [f"e{number}" for number in range(200)]


def test_a_strict_default_isolation_is_no_error(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    hook.run(
        "ALTER ROLE postgres IN DATABASE "
        + hook.fetch("SELECT current_database()")[0][0]
        + " SET default_transaction_isolation = 'serializable'"
    )
    tables(hook).cursor()
    outcomes = _at_once([lambda: tables(hook).land(PAGES[0])] * 4)
    assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["CursorMoved"] * 3 + ["int"]


def test_a_reader_neither_blocks_the_ingest_nor_sees_half_a_page(hook: Hook) -> None:
    feed = tables(hook)
    feed.cursor()
    feed.land(page(0, *events(0, 3)))
    with closing(hook.get_conn()) as reader, closing(reader.cursor()) as cursor:
        cursor.execute(
            "BEGIN" if hook.dialect_name != "postgresql" else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
        )
        cursor.execute(IDS)
        assert len(cursor.fetchall()) == 3
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(feed.land, page(3, *events(3, 5))).result(PATIENCE) == 2
        cursor.execute(IDS)
        assert len(cursor.fetchall()) == 3
    assert len(hook.fetch(IDS)) == 5


def test_what_is_not_committed_is_not_seen_and_blocks_no_reader(hook: Hook) -> None:
    tables(hook).cursor()
    assert hook.fetch(IDS) == []
    counts = []

    class Watching(Faulty):
        def step(self, what: str, run: Callable[[], Any]) -> Any:
            result = run()
            if what.startswith(("INSERT INTO", "COPY")):
                counts.append(len(hook.fetch(IDS)))
            return result

    Watching(0, after=False).tables(hook).land(PAGES[0])
    assert len(counts) >= 3
    assert set(counts) == {0}
    assert len(hook.fetch(IDS)) == 3


def test_sqlite_waits_for_another_writer(tmp_path: Path) -> None:
    hook = sqlite_hook(tmp_path / "warehouse.db")
    feed = tables(hook)
    feed.cursor()
    assert hook.fetch("PRAGMA journal_mode") == [("wal",)]
    with closing(sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None, check_same_thread=False)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        asks, released = threading.Event(), threading.Event()

        def release() -> None:
            asks.wait(PATIENCE)
            time.sleep(0.3)  # it has asked, and is refused meanwhile
            released.set()
            writer.rollback()

        class Asking(Faulty):
            def step(self, what: str, run: Callable[[], Any]) -> Any:
                asks.set()
                return super().step(what, run)

        with ThreadPoolExecutor(1) as pool:
            releasing = pool.submit(release)
            assert Asking(0, after=False).tables(hook).land(PAGES[0]) == 3
            assert released.is_set()
            releasing.result()


# --------------------------------------------------------------------------------------------------------- the cursor


def test_a_reset_reads_everything_again_without_duplicates(hook: Hook) -> None:
    feed = tables(hook)
    feed.cursor()
    lines = [event(0), b"junk", event(1), b"junk", event(2), b"more junk"]
    for start in (0, 2, 4):
        feed.land(page(start, *lines[start : start + 2]))
    before = hook.fetch(IDS), [bytes(raw) for (raw,) in hook.fetch(REJECTED)]
    for reset in ("UPDATE outbound_transfer_feed_cursor SET cursor = 0", "DELETE FROM outbound_transfer_feed_cursor"):
        hook.run(reset)
        assert feed.cursor() == 0
        # The pages are cut otherwise this time.
        assert feed.land(page(0, *lines[:5])) == 0
        assert feed.land(page(5, *lines[5:])) == 0
        assert (hook.fetch(IDS), [bytes(raw) for (raw,) in hook.fetch(REJECTED)]) == before
        assert before[1] == [b"junk", b"junk", b"more junk"]


def test_a_feed_that_is_read_again_is_not_tried_as_new_page_after_page(hook: Hook) -> None:
    feed = tables(hook)
    feed.cursor()
    pages = [page(start, *events(start, start + 2)) for start in range(0, 10, 2)]
    for each in pages[:3]:
        feed.land(each)
    hook.run("UPDATE outbound_transfer_feed_cursor SET cursor = 0")
    tried, append = [], feed.warehouse.append

    def counting(cursor: Any, table: Table, rows: Sequence[Any]) -> int:
        if table is EVENTS:
            tried.append(rows[0][1])
        return append(cursor, table, rows)

    feed.warehouse.append = counting
    assert [feed.land(each) for each in pages] == [0, 0, 0, 2, 2]
    # SQLite gains nothing by adding without a look.
    assert tried == ([] if hook.dialect_name == "sqlite" else ["e0", "e8"])
    assert hook.fetch(IDS) == [(f"e{number}",) for number in range(10)]


# SQLite and DuckDB refuse to add to such a table: their look is the key's.
@pytest.mark.parametrize("name", ["psycopg", "psycopg2"])
def test_a_table_that_was_made_without_the_key_gets_no_event_twice(hook_of: Callable[[str], Hook], name: str) -> None:
    hook = hook_of(name)
    feed = tables(hook)
    feed.cursor()
    hook.run("ALTER TABLE outbound_transfer_events DROP CONSTRAINT outbound_transfer_events_pkey")
    assert feed.land(page(0, *events(0, 2), event(1))) == 2
    assert feed.land(page(3, *events(1, 3))) == 1
    assert feed.land(page(5, *events(0, 4))) == 1
    assert hook.fetch(IDS) == [("e0",), ("e1",), ("e2",), ("e3",)]


@pytest.mark.parametrize("table", ["events", "feed_polls"])
def test_a_constraint_of_the_users_own_is_no_lost_race(hook: Hook, table: str) -> None:
    feed = tables(hook)
    feed.cursor()
    column = "other" if table == "events" else "note"
    if hook.dialect_name == "sqlite":
        hook.run(
            f"CREATE TRIGGER t BEFORE INSERT ON outbound_transfer_{table} WHEN NEW.{column} IS NULL"
            " BEGIN SELECT RAISE(ABORT, 'NOT NULL constraint failed'); END"
        )
    else:
        hook.run(f"ALTER TABLE outbound_transfer_{table} ALTER COLUMN {column} SET NOT NULL")
    with pytest.raises(Exception, match=r"(?i)not.null") as caught:
        feed.land(page(0, *events(0, 2)))
    assert not isinstance(caught.value, CursorMoved | KnownRow)
    assert _state(hook) == (0, [], 0)


@pytest.mark.parametrize(
    "change", ["UPDATE outbound_transfer_feed_cursor SET cursor = 3", "DELETE FROM outbound_transfer_feed_cursor"]
)
def test_a_cursor_that_is_changed_under_a_reader_lands_nothing(hook: Hook, change: str) -> None:
    feed = tables(hook)
    feed.cursor()
    hook.run(change)
    with pytest.raises(CursorMoved, match="not 0 any more"):
        feed.land(PAGES[0])
    assert (hook.fetch(IDS), hook.fetch(REJECTED)) == ([], [])


def test_a_cursor_that_is_none_is_refused(hook: Hook) -> None:
    feed = tables(hook)
    feed.cursor()
    hook.run("UPDATE outbound_transfer_feed_cursor SET cursor = -1")
    with pytest.raises(InvalidCursor, match="set it to 0"):
        feed.cursor()
    if hook.dialect_name == "sqlite":
        hook.run("UPDATE outbound_transfer_feed_cursor SET cursor = 'soon'")
        with pytest.raises(InvalidCursor, match="'soon'"):
            feed.cursor()


def test_the_largest_cursor_fits(hook: Hook) -> None:
    feed = tables(hook)
    feed.cursor()
    feed.land(page(0, event(1), next_cursor=2**63 - 1))
    assert feed.cursor() == 2**63 - 1


def test_feeds_share_tables_but_neither_cursors_nor_ids(hook: Hook) -> None:
    one, other = tables(hook, "one"), tables(hook, "other")
    one.cursor()
    one.land(page(0, event(1), b"junk", next_cursor=7))
    assert other.cursor() == 0
    assert other.land(page(0, event(1), b"junk")) == 1
    assert one.cursor() == 7
    assert len(hook.fetch(IDS)) == len(hook.fetch(REJECTED)) == 2


# --------------------------------------------------------------------------------------------------------------- names

HOSTILE = ['x"; DROP TABLE victim; --', "100%s %(a)s %%", "?:a'$1", "naïve 表 ", "a.b", "select"]


@pytest.mark.parametrize("prefix", HOSTILE)
def test_names_are_quoted(any_hook: Hook, prefix: str) -> None:
    any_hook.run("CREATE TABLE victim (a int)")
    feed = tables(any_hook, prefix=prefix)
    feed.cursor()
    assert feed.land(PAGES[0]) == 3
    assert feed.cursor() == 4
    assert any_hook.fetch("SELECT * FROM victim") == []
    quoted = '"' + prefix.replace('"', '""') + 'events"'
    assert any_hook.fetch(f"SELECT count(*) FROM {quoted}") == [(3,)]


@pytest.mark.parametrize("schema", [*HOSTILE, "Mixed"])
def test_a_schema_is_quoted_too(hook_of: Callable[[str], Hook], schema: str) -> None:
    hook = hook_of("psycopg")
    quoted = '"' + schema.replace('"', '""') + '"'
    hook.run(f"CREATE SCHEMA {quoted}")
    feed = tables(hook, schema=schema, prefix=schema)
    feed.cursor()
    assert feed.land(PAGES[0]) == 3
    names = hook.fetch("SELECT tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")
    assert sorted(names) == sorted((schema + suffix,) for suffix in TABLE_NAMES)


def test_sqlite_takes_its_main_schema(tmp_path: Path) -> None:
    feed = tables(sqlite_hook(tmp_path / "warehouse.db"), schema="main")
    assert feed.cursor() == 0
    assert feed.land(PAGES[0]) == 3


def test_a_schema_that_is_not_there_is_said(hook: Hook) -> None:
    with pytest.raises(Exception, match="nowhere"):
        tables(hook, schema="nowhere").cursor()


def test_tables_of_two_prefixes_do_not_mix(hook: Hook) -> None:
    for prefix in ("a_", "b_"):
        feed = tables(hook, prefix=prefix)
        feed.cursor()
        assert feed.land(PAGES[0]) == 3


@pytest.mark.parametrize("name", ["x" * 50, "é" * 25, "a\0b", "\ud800"])
def test_a_name_that_postgres_would_change_is_refused(hook_of: Callable[[str], Hook], name: str) -> None:
    hook = hook_of("psycopg")
    with pytest.raises(InvalidName):
        tables(hook, prefix=name)
    tables(hook, prefix="x" * 49).cursor()


def test_a_role_that_may_not_create_tables_uses_those_that_are_there(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    tables(hook, "other").cursor()
    role = "role_" + hook.fetch("SELECT current_database()")[0][0]
    hook.run(f"CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")

    def connect() -> Any:
        connection = hook.get_conn()
        connection.execute(f"SET SESSION AUTHORIZATION {role}")
        connection.commit()
        return connection

    try:
        feed = tables(Hook("postgresql", connect))
        assert feed.cursor() == 0
        assert feed.land(PAGES[0]) == 3
    finally:
        hook.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


# ---------------------------------------------------------------------------------------------------------------- size


def test_full_pages_land(hook: Hook) -> None:
    feed = tables(hook)
    feed.cursor()
    full = [page(s, *(event(n, data={"name": "x" * 500}) for n in range(s, s + 1_000))) for s in range(0, 5_000, 1_000)]
    assert [feed.land(each) for each in full] == [1_000] * 5
