"""Pages that one triggerer has read, for the others that poll with its key: ids, statuses and times of transfers."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import msgspec
import sqlalchemy as sa

from outbound_transfer.airflow_compat.connections import with_parsed_extra
from outbound_transfer.client.models import Transfer, TransferPage
from outbound_transfer.store.config import deliveries_conn_id, table_naming
from outbound_transfer.store.engine import Database
from outbound_transfer.store.types import Text

if TYPE_CHECKING:
    from outbound_transfer.client.settings import Settings

log = logging.getLogger(__name__)

#: Seconds that the database may take for a page.
MAX_SECONDS: Final = 5.0


class SharedPages:
    """The pages of one key; two triggerers that read one at the same time harm nothing. No method raises:
    once the database has failed, none is shared.

    :param database: None if none is shared.
    :param key: identifies the account and the key.
    """

    def __init__(self, database: Database | None = None, prefix: str = "", schema: str | None = None, key: str = ""):
        self._database, self._key = database, key
        self._table = sa.Table(
            f"{prefix}pages",
            sa.MetaData(schema=schema),
            sa.Column("page", Text(64), primary_key=True),
            sa.Column("read_at", sa.Float(53), nullable=False),
            sa.Column("content", Text()),
        )

    def find(self, listing: str, max_age: float) -> TransferPage | None:
        """Return a page that was read at most ``max_age`` seconds ago; None if there is none."""
        page, read_at, content = self._table.c
        recent = read_at.between(time.time() - max_age, time.time())
        query = sa.select(content).where(page == self._id(listing), recent)
        found: TransferPage | None = self._run(
            lambda tx: msgspec.json.decode(tx.execute(query).scalar() or "null", type=TransferPage | None)
        )
        return found

    def keep(self, listing: str, page: TransferPage) -> None:
        """Keep a page, in place of the one before and of those of yesterday: nothing of a person."""
        key, at = self._id(listing), time.time()
        rows = [Transfer(row.id, row.status, "", sent_at=row.sent_at) for row in page.data]
        rows += [Transfer(row.id, "unreadable", "", sent_at=row.sent_at) for row in page.unreadable]
        content = msgspec.json.encode(TransferPage(tuple(rows), page.next_cursor)).decode()
        old = sa.delete(self._table).where((self._table.c.page == key) | (self._table.c.read_at < at - 86_400))
        new = sa.insert(self._table).values(page=key, read_at=at, content=content)
        self._run(lambda tx: (tx.execute(old), tx.execute(new)))

    def _id(self, listing: str) -> str:
        return hashlib.sha256(f"{self._key}\0{listing}".encode()).hexdigest()

    def _run(self, work: Callable[[sa.Connection], Any]) -> Any:
        if (database := self._database) is None:
            return None

        def run() -> Any:
            with database.begin() as tx:
                self._table.create(tx, checkfirst=True)
                return work(tx)

        try:
            return start_thread(lambda: database.retry(run)).result(MAX_SECONDS)
        except Exception as error:
            self._database = None
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            log.warning("Polls read alone for up to an hour, as no page can be shared: %s", text)
            return None


def find_pages(settings: Settings) -> SharedPages:
    """Return the pages of a key. Asks Airflow for the database's connection, so call it where this is allowed."""
    from outbound_transfer.store.connection import find_connection, sql_hook

    try:
        if not (conn_id := deliveries_conn_id()):
            return SharedPages()
        hook = sql_hook(with_parsed_extra(find_connection(conn_id)))  # for another thread
        database = Database(hook, "deliveries", timeout=MAX_SECONDS)
        return SharedPages(database, **table_naming(), key=f"{settings.account} {settings.key_digest}")
    except Exception as error:
        log.warning("Polls read alone, as no page can be shared: %s: %s", type(error).__name__, error)
        return SharedPages()


def start_thread(work: Callable[[], Any]) -> Future[Any]:
    """Run a function in a thread that keeps neither an event loop nor the process from ending; return its result."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it from now on

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="outbound-transfer-poll", daemon=True).start()
    return future
