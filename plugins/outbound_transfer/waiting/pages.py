"""Pages that one triggerer has read, for the others that poll with its key: ids, statuses and times of transfers."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from outbound_transfer.airflow_compat.connections import with_parsed_extra
from outbound_transfer.waiting.wait import Row
from outbound_transfer.warehouse.config import deliveries_conn_id, table_naming

if TYPE_CHECKING:
    from outbound_transfer.client import Settings

log = logging.getLogger(__name__)

#: Seconds for which the database may take for a page; then it is left alone for so many seconds.
MAX_SECONDS: Final = 5.0
PAUSE: Final = 60.0


class SharedPages:
    """The pages of one key; two triggerers that read one at the same time harm nothing. No method raises.

    :param key: identifies the account and the key.
    """

    def __init__(self, engine: sa.Engine, table: str, schema: str | None, key: str) -> None:
        self._engine, self._key, self._not_before = engine, key, 0.0
        columns = sa.Column("page", sa.String(64), primary_key=True), sa.Column("read_at", sa.Float(53), nullable=False)
        self._table = sa.Table(table, sa.MetaData(), *columns, sa.Column("content", sa.Text), schema=schema)

    def find(self, listing: str, max_age: float) -> Any:
        """Return a page that was read at most ``max_age`` seconds ago; None if there is none."""
        page, read_at, content = self._table.c
        recent = read_at.between(time.time() - max_age, time.time())
        query = sa.select(content).where(page == self._id(listing), recent)
        found = self._run(lambda tx: tx.execute(query).scalar())
        return json.loads(found) if found else None

    def keep(self, listing: str, shown: Any) -> None:
        """Keep a page, in place of the one before and of those of yesterday."""
        page, read_at, _ = self._table.c
        key, at = self._id(listing), time.time()
        values = {"page": key, "read_at": at, "content": json.dumps(shown)}
        old = sa.delete(self._table).where((page == key) | (read_at < at - 86_400))
        self._run(lambda tx: (tx.execute(old), tx.execute(sa.insert(self._table).values(values))))

    def _id(self, listing: str) -> str:
        return hashlib.sha256(f"{self._key}\0{listing}".encode()).hexdigest()

    def _run(self, work: Callable[[sa.Connection], Any]) -> Any:
        if time.monotonic() < self._not_before:
            return None
        results: SimpleQueue[Any] = SimpleQueue()

        def run() -> None:
            try:
                with self._engine.begin() as tx:
                    self._table.create(tx, checkfirst=True)
                    results.put(work(tx))
            except sa.exc.IntegrityError:  # another triggerer has kept it at this moment
                results.put(None)
            except Exception as error:
                results.put(error)

        Thread(target=run, name="outbound-transfer-pages", daemon=True).start()
        try:
            result = results.get(timeout=MAX_SECONDS)
        except Empty:
            result = TimeoutError(f"no response within {MAX_SECONDS:g} s")
        if isinstance(result, Exception):
            self._not_before = time.monotonic() + PAUSE
            text = f"{type(result).__name__}: {result}".partition("\n")[0][:300]
            log.warning("Polls read alone for %g s, as no page can be shared: %s", PAUSE, text)
            return None
        return result


def find_pages(settings: Settings) -> SharedPages | None:
    """Return the pages of a key; None if triggerers share no database.

    Asks Airflow for the database's connection, so call it where this is allowed.
    """
    from outbound_transfer.warehouse.connection import find_connection, sql_hook

    try:
        if not (conn_id := deliveries_conn_id()):
            return None
        connection = with_parsed_extra(find_connection(conn_id))
        if connection.conn_type == "duckdb":  # whose file one process locks for all others
            return None
        hook, names = sql_hook(connection), table_naming()
        engine = sa.create_engine(hook.get_uri(), creator=hook.get_conn, poolclass=sa.NullPool)
        key = f"{Row._fields} {settings.account} {settings.key_digest}"
        return SharedPages(engine, f"{names['prefix']}pages", names["schema"], key)
    except Exception as error:
        log.warning("Polls read alone, as no page can be shared: %s: %s", type(error).__name__, error)
        return None
