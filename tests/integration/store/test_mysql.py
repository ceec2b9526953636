"""What MySQL and MariaDB would do otherwise: on a latin1 database whose defaults are a lax mode and MyISAM."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from outbound_transfer.store.events import EventStore
from outbound_transfer.store.insert import insert_new
from outbound_transfer.store.rows import utc_now
from outbound_transfer.store.tables import EVENTS, TABLES, Tables
from support.feed_pages import Faulty, event, page, tables
from support.mariadb import Database
from support.timeouts import eventually
from support.warehouses import Hook

PREFIX = "outbound_transfer_"

HOSTILE = "Grüße 🎉 日本 \\ \\' ' \" ` %s %% \0 \x1a \n\r\t end "


@pytest.fixture(params=["mysqlclient"])
def hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    return hook_of(request.param)


def ready(hook: Hook) -> EventStore:
    feed = tables(hook)
    feed.get_or_create_cursor()
    return feed


def stored(hook: Hook) -> list[tuple[str, str]]:
    return hook.fetch(f"SELECT event_id, data FROM {PREFIX}events ORDER BY line_number")


def test_the_servers_defaults_are_those_that_would_change_values(mariadb: Database) -> None:
    with closing(mariadb.connect()) as connection, closing(connection.cursor()) as tx:
        tx.execute("SELECT @@character_set_database, @@sql_mode, @@default_storage_engine, @@time_zone")
        assert tx.fetchall() == (("latin1", "", "MyISAM", "+09:00"),)


def test_every_character_lands_unchanged(hook: Hook) -> None:
    feed = ready(hook)
    text = HOSTILE.replace("\0", "")  # a NUL is kept in `raw`
    feed.load_page(page(0, event(1, data=text, type=text, timestamp=text)))
    assert stored(hook) == [("e1", json.dumps(text, ensure_ascii=True))]
    assert hook.fetch(f'SELECT "type", "timestamp" FROM {PREFIX}events') == [(text, text)]
    line = json.dumps({"event_id": "e2", "type": "t", "data": HOSTILE}, ensure_ascii=False).encode()
    junk = b"junk " + bytes(range(11, 256))
    feed.load_page(page(1, line, junk))
    ((raw,),) = hook.fetch(f"SELECT raw FROM {PREFIX}rejected_lines WHERE line_number = 2")
    assert bytes(raw) == junk


def test_ids_that_differ_by_case_accent_or_trailing_space_are_different(hook: Hook) -> None:
    feed = ready(hook)
    ids = ["aB1", "Ab1", "e", "\xe9", "e\u0301", "a", "a ", "🎉a", "🚀a", "ß", "ss", "ﬁ", "fi"]
    assert feed.load_page(page(0, *(event(0, event_id=one) for one in ids))).new_events == len(ids)
    assert [row[0] for row in stored(hook)] == ids
    assert feed.load_page(page(len(ids), *(event(0, event_id=one) for one in ids))).new_events == 0


def test_tables_say_what_they_need(hook: Hook) -> None:
    warehouse = Tables(hook)
    warehouse.create(TABLES)
    found = hook.fetch(
        "SELECT table_name, engine, row_format FROM information_schema.tables WHERE table_schema = database()"
    )
    assert set(found) == {(PREFIX + table.name, "InnoDB", "Dynamic") for table in TABLES}
    collations = hook.fetch(
        "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_schema = database()"
    )
    assert set(collations) == {("utf8mb4_nopad_bin",), (None,)}
    indexes = hook.fetch(
        "SELECT DISTINCT table_name, index_name FROM information_schema.statistics"
        " WHERE table_schema = database() AND index_name <> 'PRIMARY'"
    )
    assert set(indexes) == {(PREFIX + each.name, PREFIX + str(index.name)) for each in TABLES for index in each.indexes}
    assert len(indexes) > 1


def test_timestamps_are_of_the_databases_own_type_and_in_utc(hook: Hook) -> None:
    feed = ready(hook)
    feed.load_page(page(0, event(1, timestamp="2026-01-01T02:00:00.123456+02:00"), event(2, timestamp=5)))
    is_same = "occurred_at = TIMESTAMP '2026-01-01 00:00:00.123456'"
    assert hook.fetch(f"SELECT {is_same} FROM {PREFIX}events ORDER BY line_number") == [(1,), (None,)]
    assert hook.fetch(f"SELECT abs(timestampdiff(SECOND, loaded_at, utc_timestamp())) < 600 FROM {PREFIX}events") == [
        (1,),
        (1,),
    ]


OPTIONS: dict[str, dict[str, Any]] = {
    "latin1": {"charset": "latin1"},
    "utf8": {"charset": "utf8"},
    "autocommit": {"autocommit": True},
    "another mode": {"sql_mode": "ANSI,NO_BACKSLASH_ESCAPES"},
    "dictionaries": {"cursorclass": "DictCursor"},
    "unbuffered": {"cursorclass": "SSCursor"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_a_connection_brings_changes_nothing(mariadb: Database, name: str) -> None:
    import MySQLdb.cursors

    options = dict(OPTIONS[name])
    if "cursorclass" in options:
        options["cursorclass"] = getattr(MySQLdb.cursors, options["cursorclass"])
    hook = Hook("mysql", lambda: mariadb.connect(**options))
    feed = ready(hook)
    line = json.dumps({"event_id": "'\\", "type": "🎉\\", "data": "日本 '"}, ensure_ascii=False).encode()
    assert feed.load_page(page(0, line, b"junk")).new_events == 1
    assert feed.load_page(page(2, line, b"junk")).new_events == 0
    assert hook.fetch(f"SELECT event_id, data FROM {PREFIX}events") == [("'\\", '"日本 \'"')]
    assert feed.read_cursor() == 4


def test_names_that_differ_by_case_are_different_tables(hook: Hook) -> None:
    for prefix in ("a_", "A_"):
        feed = tables(hook, prefix=prefix)
        feed.get_or_create_cursor()
        assert feed.load_page(page(0, event(1))).new_events == 1


def test_a_deadlock_with_another_session_loads_the_page_after_all(hook: Hook) -> None:
    feed, read = ready(hook), page(0, event(1))
    attempts = 0

    class Watching(Faulty):
        def step(self, what: str, run: Callable[[], Any]) -> Any:
            nonlocal attempts
            attempts += what.startswith("UPDATE")
            return run()

    watched, row = Watching(0, after=False).tables(hook), feed._event_row(read.events[0], 0, utc_now())
    with ThreadPoolExecutor(1) as pool, feed.database.begin() as tx:
        # It changes more rows than the page, so that the database ends the page's transaction.
        insert_new(tx, feed.tables.named(EVENTS), [row, *(row | {"event_id": f"other {at}"} for at in range(100))])
        loading = pool.submit(watched.load_page, read)
        eventually(lambda: _is_waiting(hook))
        feed.compare_and_set_cursor(tx, 0, 7)
        tx.rollback()
        assert loading.result().new_events == 1
    assert attempts == 2
    assert stored(hook) == [("e1", "{}")]
    assert feed.read_cursor() == 1


def _is_waiting(hook: Hook) -> bool:
    time.sleep(0.2)  # the server repeats its last response to those who ask more often
    return hook.fetch("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") == [(1,)]


def test_a_user_who_may_not_create_tables_uses_those_that_are_there(mariadb: Database) -> None:
    import MySQLdb

    root = Hook("mysql", mariadb.connect)
    tables(root, "other").get_or_create_cursor()
    user = mariadb.name
    root.run(f"CREATE USER '{user}'@'localhost'")
    try:
        root.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {mariadb.name}.* TO '{user}'@'localhost'")
        feed = ready(Hook("mysql", lambda: MySQLdb.connect(unix_socket=mariadb.socket, user=user, db=mariadb.name)))
        assert feed.load_page(page(0, event(1))).new_events == 1
    finally:
        root.run(f"DROP USER '{user}'@'localhost'")


def test_no_index_of_a_users_own_loses_an_event(hook: Hook) -> None:
    feed = ready(hook)
    hook.run('CREATE UNIQUE INDEX mine ON outbound_transfer_events ("type"(10))')
    with pytest.raises(IntegrityError, match="mine"):
        feed.load_page(page(0, event(1), event(2), event(3)))
    assert (stored(hook), feed.read_cursor()) == ([], 0)


def test_a_lock_wait_timeout_is_no_moved_cursor(hook: Hook) -> None:
    ready(hook)
    feed = tables(hook, timeout=1)
    other = hook.connect()
    with closing(other), closing(other.cursor()) as tx:
        tx.execute("UPDATE outbound_transfer_feed_cursor SET updated_at = NULL WHERE 1 = 0")
        tx.execute("SELECT * FROM outbound_transfer_feed_cursor FOR UPDATE")
        tx.fetchall()
        with pytest.raises(Exception, match=r"1205|Lock wait timeout|max_statement_time"):
            feed.load_page(page(0, event(1)))
    assert feed.load_page(page(0, event(1))).new_events == 1
