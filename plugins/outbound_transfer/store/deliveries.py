"""The table of deliveries: one row for each, which is changed only as it was read."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.store.engine import Database
from outbound_transfer.store.errors import DeliveriesUnavailable
from outbound_transfer.store.rows import Stored
from outbound_transfer.store.types import FLAG, WHOLE, Text, Time

if TYPE_CHECKING:
    from outbound_transfer.store.engine import HookLike

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds for which a statement is repeated, with new connections: a restart of the database costs no upload.
PATIENCE: Final = 60.0


def deliveries_table(prefix: str, schema: str | None = None) -> sa.Table:
    """Return the table."""
    return sa.Table(
        f"{prefix}delivery_rows",
        sa.MetaData(schema=schema),
        sa.Column("delivery", Text(64), primary_key=True, comment="digest of the task instance or the delivery key"),
        sa.Column("version", WHOLE, nullable=False, comment="raised by each write"),
        sa.Column("is_keyed", FLAG, nullable=False, comment="whether a delivery key identifies it"),
        sa.Column("account", Text(255), nullable=False),
        sa.Column("transfer_id", Text(255), nullable=False, comment="empty if there is no draft"),
        sa.Column("phase", Text(16), nullable=False, comment="empty, draft, handed_on, sending or discarding"),
        sa.Column("twin", Text(64), nullable=False, comment="the same in tasks of a run that deliver the same"),
        sa.Column("run_started", Text(40), nullable=False, comment="of the run that has claimed it last"),
        sa.Column("memory", Text(), nullable=False, comment="digests and files; no person, no secret"),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("updated_at", Time, nullable=False),
        sa.Index(f"{prefix}delivery_rows_transfer", "transfer_id"),
        sa.Index(f"{prefix}delivery_rows_twin", "twin"),
        comment="What tasks remember of their deliveries",
    )


class Deliveries:
    """The rows in one database. Each statement is a transaction of its own, on a connection of its own.

    :param name: what errors call the database.
    :param patience: seconds for which a statement that fails is repeated.
    :raises UnsupportedDatabase: the database stores no deliveries.
    """

    def __init__(
        self,
        hook: HookLike,
        *,
        prefix: str,
        schema: str | None = None,
        name: str = "the database",
        patience: float | None = None,
    ) -> None:
        self.name, self._patience = name, PATIENCE if patience is None else patience
        self._database, self._hook = Database(hook, "deliveries"), hook
        self._table = deliveries_table(prefix, schema)
        self._is_created = False

    def is_made(self) -> bool:
        """Return whether the table is there. Nothing is created: neither the table, nor the file of SQLite."""
        if self._database.name == "sqlite":
            file = Path(sa.make_url(self._hook.get_uri()).database or "")
            if not file.is_file():
                return False
            with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
                query = "SELECT count(*) FROM sqlite_master WHERE name = ?"
                return bool(database.execute(query, (self._table.name,)).fetchone()[0])
        with self._database.begin() as tx:
            return sa.inspect(tx).has_table(self._table.name, self._table.schema)

    def read(self, key: str) -> tuple[int, str]:
        """Return a row's version and memory; 0 and "" if there is none."""
        columns = self._table.c
        query = sa.select(columns.version, columns.memory).where(columns.delivery == key)
        found = self._run(lambda tx: tx.execute(query).first())
        return (int(found[0]), str(found[1])) if found else (0, "")

    def put(self, key: str, version: int, row: Stored) -> bool:
        """Insert a row (version 0), or update it if it still has this version; return whether it was stored.

        False also if it was stored, and the database's answer was lost: whoever gets it reads the row again.
        """
        columns, values = self._table.c, {**row._asdict(), "updated_at": datetime.now(UTC)}
        if not version:
            insert = sa.insert(self._table).values(**values, delivery=key, version=1, created_at=values["updated_at"])
            return self._run(lambda tx: _insert(tx, insert))
        del values["is_keyed"]
        update = (
            sa.update(self._table)
            .where(columns.delivery == key, columns.version == version)
            .values(**values, version=version + 1)
        )
        # The version changes with each update, so the count does not depend on what a driver counts.
        return self._run(lambda tx: tx.execute(update).rowcount == 1)

    def find(self, transfer_id: str) -> list[tuple[str, str]]:
        """Return the keys and accounts of the rows of a transfer, the newest first."""
        columns = self._table.c
        query = (
            sa.select(columns.delivery, columns.account)
            .where(columns.transfer_id == transfer_id)
            .order_by(columns.updated_at.desc())
        )
        return self._run(lambda tx: [(str(key), str(account)) for key, account in tx.execute(query)])

    def find_twin(self, key: str, twin: str, run_started: str) -> str:
        """Return the transfer id of another row that is sending the same; "" if there is none."""
        columns = self._table.c
        query = sa.select(columns.transfer_id).where(
            columns.twin == twin, columns.phase == "sending", columns.delivery != key
        )
        if run_started:
            query = query.where(columns.run_started == run_started)
        return str(self._run(lambda tx: tx.execute(query).scalar()) or "")

    def clean(self, older_than: datetime) -> int:
        """Delete the rows of task instances that were last written before ``older_than``; return how many.

        Rows of delivery keys stay, and those of drafts that may still be filled, sent or deleted.
        """
        columns = self._table.c
        delete = sa.delete(self._table).where(
            ~columns.is_keyed,
            columns.updated_at < older_than,
            columns.phase.in_(["empty", "sending"]),
        )
        return int(self._run(lambda tx: tx.execute(delete).rowcount))

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a transaction, again if it fails.

        :raises DeliveriesUnavailable: it has failed for :data:`PATIENCE`.
        """

        def attempt() -> T:
            if not self._is_created:
                self._database.create_tables(self._table.metadata)
                self._is_created = True
            with self._database.begin() as tx:
                return work(tx)

        try:
            return Retrying(
                retry=retry_if_exception(_may_pass),
                wait=wait_random_exponential(multiplier=0.1, max=5.0),
                stop=stop_after_delay(self._patience),
                before_sleep=self._log_wait,
                reraise=True,
            )(attempt)
        except OutboundTransferError:
            raise
        except Exception as error:
            raise DeliveriesUnavailable(
                f"Nothing more is done: the table of deliveries cannot be used, as {self.name} fails with "
                f"{_words_of(error)}. A retry continues once that database responds and has room"
            ) from error

    def _log_wait(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("%s failed and is asked again: %s", self.name, _words_of(error))


def _insert(tx: sa.Connection, insert: Any) -> bool:
    try:
        tx.execute(insert)
    except IntegrityError:  # somebody else has inserted it
        tx.rollback()
        return False
    return True


def _may_pass(error: BaseException) -> bool:
    final = (OutboundTransferError, ProgrammingError, DataError)
    return isinstance(error, Exception) and not isinstance(error, final)


def _words_of(error: BaseException | None) -> str:
    """Return an error in a line: a database may quote rows in others."""
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__name__}: {''.join(str(cause).strip().splitlines()[:1])[:300] or 'no text'}"
