"""What MySQL and MariaDB would do otherwise: on a latin1 database whose defaults are a lax mode and MyISAM."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.insert import insert_new
from outbound_transfer.store.rows import utc_now
from outbound_transfer.store.tables import EVENTS, FEED, TABLES, Tables
from outbound_transfer.ui.filters import Filter
from outbound_transfer.ui.queries import overview
from support.feed_pages import event, page, tables
from support.mariadb import Database
from support.timeouts import eventually
from support.warehouses import Hook, observe

PREFIX = "outbound_transfer_"


@pytest.fixture
def hook(mariadb: Database) -> Hook:
    with closing(mariadb.connect()) as connection, closing(connection.cursor()) as tx:
        tx.execute("SELECT @@character_set_database, @@sql_mode, @@default_storage_engine, @@time_zone")
        assert tx.fetchall() == (("latin1", "", "MyISAM", "+09:00"),), "the defaults that would change values"
    return Hook("mysql", mariadb.connect)


def ready(hook: Hook) -> EventStore:
    feed = tables(hook)
    feed.get_or_create_cursor()
    return feed


def stored(hook: Hook) -> list[tuple[str, str]]:
    return hook.fetch(f"SELECT event_id, data FROM {PREFIX}events ORDER BY line_number")


def test_ids_that_differ_by_case_accent_or_trailing_space_are_different(hook: Hook) -> None:
    feed = ready(hook)
    ids = ["aB1", "Ab1", "e", "\xe9", "e\u0301", "a", "a ", "🎉a", "🚀a", "ß", "ss", "ﬁ", "fi"]
    assert feed.load_page(page(0, *(event(0, event_id=one) for one in ids))).new_events == len(ids)
    assert [row[0] for row in stored(hook)] == ids
    assert feed.load_page(page(len(ids), *(event(0, event_id=one) for one in ids))).new_events == 0


def test_tables_say_what_they_need_whatever_the_servers_defaults_are(hook: Hook) -> None:
    hook.run("SET GLOBAL innodb_default_row_format = compact")  # too short for the keys
    try:
        Tables(hook).create(TABLES)
    finally:
        hook.run("SET GLOBAL innodb_default_row_format = dynamic")

    def catalog(columns: str, of: str, more: str = "") -> set[Any]:
        return set(hook.fetch(f"SELECT {columns} FROM information_schema.{of} WHERE table_schema = database() {more}"))

    assert catalog("table_name, engine, row_format", "tables") == {
        (PREFIX + table.name, "InnoDB", "Dynamic") for table in TABLES
    }
    assert catalog("collation_name", "columns") == {("utf8mb4_nopad_bin",), (None,)}
    indexes = {(PREFIX + each.name, PREFIX + str(index.name)) for each in TABLES for index in each.indexes}
    assert catalog("table_name, index_name", "statistics", "AND index_name <> 'PRIMARY'") == indexes


OPTIONS: dict[str, dict[str, Any]] = {
    "latin1": {"charset": "latin1"},
    "utf8": {"charset": "utf8"},
    "autocommit": {"autocommit": True},
    "another mode": {"sql_mode": "ANSI,NO_BACKSLASH_ESCAPES"},
    "dictionaries": {"cursorclass": "DictCursor"},
    "unbuffered": {"cursorclass": "SSCursor"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_connection_options_do_not_change_what_is_stored(mariadb: Database, name: str) -> None:
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


def test_a_deadlock_with_another_session_loads_the_page_after_all(hook: Hook) -> None:
    feed, read, attempts = ready(hook), page(0, event(1)), []

    def watch(what: str, run: Callable[[], Any]) -> Any:
        if what.startswith("UPDATE"):
            attempts.append(what)
        return run()

    watched, row = tables(hook), feed._event_row(read.events[0], 0, utc_now())
    observe(watched.database, watch)
    with ThreadPoolExecutor(1) as pool, feed.database.begin() as tx:
        # It changes more rows than the page, so that the database ends the page's transaction.
        insert_new(tx, feed.tables.named(EVENTS), [row, *(row | {"event_id": f"other {at}"} for at in range(100))])
        loading = pool.submit(watched.load_page, read)
        eventually(lambda: _is_waiting(hook))
        feed.compare_and_set_cursor(tx, 0, 7)
        tx.rollback()
        assert loading.result().new_events == 1
    assert len(attempts) == 2
    assert stored(hook) == [("e1", "{}")]
    assert feed.read_cursor() == 1


def _is_waiting(hook: Hook) -> bool:
    time.sleep(0.2)  # the server repeats its last response to those who ask more often
    return hook.fetch("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") == [(1,)]


def test_a_lock_wait_timeout_is_not_taken_for_a_moved_cursor(hook: Hook) -> None:
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


def test_a_table_in_the_making_breaks_nothing(hook: Hook) -> None:
    """MariaDB does not wait for one, but fails with 1684, in a transaction that has read others."""
    Tables(hook).create(FEED[:-1])
    Deliveries(hook, prefix=PREFIX).read("")
    shown, made, making = Deliveries(hook, prefix=PREFIX), Tables(hook), []
    with closing(hook.connect()) as other, ThreadPoolExecutor(1) as pool:
        end = f"KILL QUERY {other.thread_id()}"
        making_now = "SELECT 1 FROM information_schema.processlist WHERE state = 'User sleep'"

        def watch(what: str, run: Callable[[], Any]) -> Any:
            if what.startswith("SELECT") and "FROM" in what and not making:
                making.append(pool.submit(other.query, f"CREATE TABLE {PREFIX}feed_polls SELECT SLEEP(600)"))
                eventually(lambda: hook.fetch(making_now))
            try:
                return run()
            finally:
                if making and "feed_polls" in what:
                    hook.run(end)

        uses: Any = (shown, lambda: overview(shown, Filter(), [], utc_now())), (made, lambda: made.create(FEED))
        for one, use in uses:
            observe(one.database, watch)
            use()
            hook.run(end)
            assert "interrupted" in str(making.pop().exception())
