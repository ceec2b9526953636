"""The table of deliveries: one row for each, updated only if it has not changed since it was read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, ProgrammingError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.store.engine import Database
from outbound_transfer.store.errors import DeliveriesUnavailable, words_of
from outbound_transfer.store.insert import insert_new
from outbound_transfer.store.rows import Kept, Stored
from outbound_transfer.store.tables import DELIVERIES, with_names

if TYPE_CHECKING:
    from outbound_transfer.store.engine import HookLike

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds for which a statement is repeated, with new connections: a restart of the database costs no upload.
PATIENCE: Final = 60.0

#: What a row shows before its draft is known.
_NOTHING_SHOWN: Final[dict[str, Any]] = {
    **dict.fromkeys(("status", "subject", "error"), ""),
    **dict.fromkeys(("recipient_count", "picked_up_count"), 0),
    **dict.fromkeys(("sent_at", "expires_at")),
    "recipients": "[]",
}


class Deliveries:
    """The rows in one database. Each statement is a transaction of its own, on a connection of its own.

    :param name: the database's name in errors.
    :param patience: seconds for which a statement that fails is repeated.
    :param timeout: seconds to wait for other sessions.
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
        timeout: float = 30.0,
    ) -> None:
        self.name, self._patience = name, PATIENCE if patience is None else patience
        self.database = Database(hook, "deliveries", timeout=timeout)
        self.table, self._is_created = with_names(DELIVERIES, prefix, schema), False

    def read(self, key: str) -> tuple[int, str]:
        """Return a row's version and memory; 0 and "" if there is none."""
        columns = self.table.c
        query = sa.select(columns.version, columns.memory).where(columns.delivery == key)
        return self.run(lambda tx: tx.execute(query).tuples().first()) or (0, "")

    def put(self, key: str, version: int, row: Stored, kept: Kept | None = None) -> bool:
        """Insert a row (version 0), or update it if it still has this version; return whether it was stored.

        False even if it was stored but the database's answer was lost: the caller reads the row again.

        :param kept: a copy of the row as it was, to store in the same transaction.
        """
        columns, now = self.table.c, datetime.now(UTC)
        fresh = {**_NOTHING_SHOWN, "created_at": now, "day": f"{now:%Y-%m-%d}"}
        values = {**row._asdict(), "version": version + 1, "updated_at": now}
        if not version:
            new = {"delivery": key, "conn_id": "", **fresh, **values}
            return self.run(lambda tx: bool(insert_new(tx, self.table, [new])))
        del values["is_keyed"]
        # A new draft resets the page's columns. They come first: MySQL compares with values that it has just set.
        is_same = columns.transfer_id == row.transfer_id
        changes: list[tuple[Any, Any]] = [
            (columns[name], sa.case((is_same, columns[name]), else_=sa.literal(value, columns[name].type)))
            for name, value in fresh.items()
        ]
        changes += [(columns[name], value) for name, value in values.items()]
        is_row = (columns.delivery == key) & (columns.version == version)

        def work(tx: sa.Connection) -> bool:
            if kept:
                stored = sa.select(*(column for column in self.table.columns if not column.computed)).where(is_row)
                if (found := tx.execute(stored).mappings().first()) is None:
                    return False
                copy = {**found, **kept.row._asdict(), "delivery": kept.key, "error": kept.error or found["error"]}
                tx.execute(sa.delete(self.table).where(columns.delivery == kept.key))
                tx.execute(sa.insert(self.table), copy)
            # The version changes with each update, so the count does not depend on what a driver counts.
            if not (
                is_stored := tx.execute(sa.update(self.table).where(is_row).ordered_values(*changes)).rowcount == 1
            ):
                tx.rollback()
            return is_stored

        return self.run(work)

    def find(self, transfer_id: str) -> list[tuple[str, str, bool]]:
        """Return keys and accounts of the rows of a transfer, the newest first, and whether a delivery key has it."""
        columns = self.table.c
        query = sa.select(columns.delivery, columns.account, columns.is_keyed).filter_by(transfer_id=transfer_id)
        return self.run(lambda tx: [(*row,) for row in tx.execute(query.order_by(columns.updated_at.desc())).tuples()])

    def find_twin(self, own: Collection[str], twin: str, run_started: str) -> str:
        """Return the transfer id of a row that is sending the same, and has none of these keys; "" if there is none."""
        columns = self.table.c
        is_twin = (columns.twin == twin) & (columns.phase == "sending") & columns.delivery.not_in(list(own))
        is_of_run = columns.run_started == run_started if run_started else sa.true()
        return self.run(lambda tx: tx.scalar(sa.select(columns.transfer_id).where(is_twin, is_of_run))) or ""

    def run(self, work: Callable[[sa.Connection], T], patience: float | None = None) -> T:
        """Run a transaction, again if it fails. The table is created once it turns out to be missing.

        :param patience: seconds for which it is repeated; those of this object if it is None.
        :raises DeliveriesUnavailable: it has failed for this long.
        """

        def attempt() -> T:
            try:
                with self.database.begin() as tx:
                    return work(tx)
            except DBAPIError:
                if self._is_created:
                    raise
            self.database.create_tables([self.table])
            self._is_created = True
            return attempt()

        def log_wait(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            log.warning("%s failed; repeating the statement: %s", self.name, words_of(error))

        try:
            return Retrying(
                retry=retry_if_exception(_may_pass),
                wait=wait_random_exponential(multiplier=0.1, max=5.0),
                stop=stop_after_delay(self._patience if patience is None else patience),
                before_sleep=log_wait,
                reraise=True,
            )(attempt)
        except OutboundTransferError:
            raise
        except Exception as error:
            raise DeliveriesUnavailable(
                f"Nothing more is done: the table of deliveries cannot be used, because {self.name} fails with "
                f"{words_of(error)}. A retry continues once that database responds and has room"
            ) from None  # its other lines may quote the row


def _may_pass(error: BaseException) -> bool:
    final = (OutboundTransferError, ProgrammingError, DataError)
    return isinstance(error, Exception) and not isinstance(error, final)
