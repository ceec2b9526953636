"""The table of deliveries: one row for each, which is changed only as it was read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.client.models import DRAFT
from outbound_transfer.store.engine import Database
from outbound_transfer.store.errors import DeliveriesUnavailable, words_of
from outbound_transfer.store.personal_data import ERASED
from outbound_transfer.store.rows import ASKED, Kept, Shown, Stored
from outbound_transfer.store.statuses import (
    DELETED,
    FAILED,
    IN_DOUBT,
    NO_DRAFT,
    REHEARSED,
    TERMINAL_STATUSES,
    WAITS_FOR_APPROVAL,
    status_rank,
)
from outbound_transfer.store.types import FLAG, WHOLE, Text, Time

if TYPE_CHECKING:
    from outbound_transfer.store.engine import HookLike

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds for which a statement is repeated, with new connections: a restart of the database costs no upload.
PATIENCE: Final = 60.0

#: Age of the deliveries that count as in doubt: newer than the first, unchanged for the second.
_RECENT: Final = timedelta(days=30)
_STAYS: Final = timedelta(minutes=15)

#: What a row shows before its draft is known.
_NOTHING_SHOWN: Final[dict[str, Any]] = {
    **dict.fromkeys(("status", "subject", "error"), ""),
    **dict.fromkeys(("recipient_count", "picked_up_count"), 0),
    **dict.fromkeys(("sent_at", "expires_at")),
    "recipients": "[]",
}


def deliveries_table(prefix: str, schema: str | None = None) -> sa.Table:
    """Return the table. ``info`` has ``personal`` of the columns that may say something about a person."""
    name = f"{prefix}deliveries"

    def column(name: str, kind: Any, comment: str, *, personal: bool = False, **options: Any) -> sa.Column[Any]:
        info = {"personal": True} if personal else {}
        return sa.Column(name, kind, comment=comment, info=info, **{"nullable": False, **options})

    return sa.Table(
        name,
        sa.MetaData(schema=schema),
        column("delivery", Text(64), "digest of the task instance or the delivery key", primary_key=True),
        column("version", WHOLE, "raised by each write of a delivery"),
        column("is_keyed", FLAG, "whether a delivery key identifies it"),
        column("account", Text(255), "where the draft was made: the site address; empty if there is none"),
        column("transfer_id", Text(255), "the draft or the sent transfer; empty if there is none"),
        column("phase", Text(16), "empty, draft, handed_on, asked, sending (or sent) or discarding"),
        column("is_rehearsal", FLAG, "whether the draft is never sent, as its connection rehearses"),
        column("twin", Text(64), "the same in tasks of a run that deliver the same"),
        column("run_started", Text(40), "start of the run that has claimed it last"),
        column("memory", Text(), "what tasks remember, as JSON: digests, and each file's name and size", personal=True),
        column("dag_id", Text(250), "of the task instance that has claimed it last; empty if nothing is shown"),
        column("run_id", Text(250), "its run"),
        column("task_id", Text(250), "its task id"),
        column("map_index", WHOLE, "its map index; -1 if the task is not mapped"),
        column("try_number", WHOLE, "its try number"),
        column("conn_id", Text(250), "the Airflow connection", default=""),
        column("status", Text(40), "the last status that a task, a wait or a listing has seen", default=""),
        column("subject", Text(), "as sent", default="", personal=True),
        column("recipient_count", WHOLE, "number of recipients", default=0),
        column("picked_up_count", WHOLE, "recipients who had picked up by then", default=0),
        column("sent_at", Time, "when it was sent", nullable=True),
        column("expires_at", Time, "when pickup ends", nullable=True),
        column("recipients", Text(), "email, name and picked_up_at of each, as JSON", default="[]", personal=True),
        column(
            "error", Text(), "what ended the last attempt, on one line; empty if nothing did", default="", personal=True
        ),
        column("created_at", Time, "when its draft was made; before that, when a task claimed it"),
        column("updated_at", Time, "when a delivery wrote it last"),
        sa.Index(f"{name}_transfer", "transfer_id"),
        sa.Index(f"{name}_twin", "twin"),
        sa.Index(f"{name}_created", "created_at"),
        comment="Deliveries, one row each: what their tasks remember, and what the page shows.",
    )


class Deliveries:
    """The rows in one database. Each statement is a transaction of its own, on a connection of its own.

    :param name: what errors call the database.
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
        self.table = deliveries_table(prefix, schema)
        self._is_created = False

    def is_made(self) -> bool:
        """Return whether the table is there. Nothing is created: neither the table, nor the file of SQLite."""
        if not self.database.is_there():
            return False
        with self.database.begin(reads_only=True) as tx:
            return sa.inspect(tx).has_table(self.table.name, self.table.schema)

    def read(self, key: str) -> tuple[int, str]:
        """Return a row's version and memory; 0 and "" if there is none."""
        columns = self.table.c
        query = sa.select(columns.version, columns.memory).where(columns.delivery == key)
        found = self._run(lambda tx: tx.execute(query).first())
        return (int(found[0]), str(found[1])) if found else (0, "")

    def put(self, key: str, version: int, row: Stored, kept: Kept | None = None) -> bool:
        """Insert a row (version 0), or update it if it still has this version; return whether it was stored.

        False also if it was stored, and the database's answer was lost: the caller reads the row again.

        :param kept: a copy of the row as it was, to store in the same transaction.
        """
        columns, now = self.table.c, datetime.now(UTC)
        if not version:
            values = {**row._asdict(), "delivery": key, "version": 1, "created_at": now, "updated_at": now}
            return self._run(lambda tx: _insert(tx, sa.insert(self.table).values(values)))
        # A new draft resets the page's columns. They come first: MySQL compares with values that it has just set.
        is_same = columns.transfer_id == row.transfer_id
        shown = {
            name: sa.case((is_same, columns[name]), else_=sa.literal(value, columns[name].type))
            for name, value in {**_NOTHING_SHOWN, "created_at": now}.items()
        }
        values = {**shown, **row._asdict(), "version": version + 1, "updated_at": now}
        del values["is_keyed"]
        is_row = (columns.delivery == key) & (columns.version == version)
        update = sa.update(self.table).where(is_row)
        update = update.ordered_values(*((columns[name], value) for name, value in values.items()))

        def work(tx: sa.Connection) -> bool:
            if kept:
                tx.execute(sa.delete(self.table).where(columns.delivery == kept.key))
                tx.execute(self._copy(is_row, kept))
            # The version changes with each update, so the count does not depend on what a driver counts.
            if not (is_stored := tx.execute(update).rowcount == 1):
                tx.rollback()
            return is_stored

        return self._run(work)

    def _copy(self, is_row: sa.ColumnElement[bool], kept: Kept) -> sa.Insert:
        """Return what inserts a copy of a row with other values."""
        values = {**kept.row._asdict(), "delivery": kept.key, **({"error": kept.error} if kept.error else {})}
        columns = [
            sa.literal(values[column.name], column.type).label(column.name) if column.name in values else column
            for column in self.table.columns
        ]
        return sa.insert(self.table).from_select(list(self.table.columns), sa.select(*columns).where(is_row))

    def find(self, transfer_id: str) -> list[tuple[str, str]]:
        """Return the keys and accounts of the rows of a transfer, the newest first."""
        columns = self.table.c
        query = (
            sa.select(columns.delivery, columns.account)
            .where(columns.transfer_id == transfer_id)
            .order_by(columns.updated_at.desc())
        )
        return self._run(lambda tx: [(str(key), str(account)) for key, account in tx.execute(query)])

    def find_twin(self, key: str, twin: str, run_started: str) -> str:
        """Return the transfer id of another row that is sending the same; "" if there is none."""
        columns = self.table.c
        query = sa.select(columns.transfer_id).where(
            columns.twin == twin, columns.phase == "sending", columns.delivery != key
        )
        if run_started:
            query = query.where(columns.run_started == run_started)
        return str(self._run(lambda tx: tx.execute(query).scalar()) or "")

    def show(self, account: str, conn_id: str, transfers: Mapping[str, Shown | None]) -> None:
        """Store the status of transfers, by id, in the rows that exist; None if a transfer was deleted.

        A listing page may be stored after a later read, so a status never moves back.
        """
        columns = self.table.c
        shown = [columns[name] for name in ("delivery", "transfer_id", "phase", "error", *Shown._fields)]
        is_shown = (columns.account == account) & columns.transfer_id.in_(list(transfers))
        # Locked, so that no erasure or other update runs in between.
        query = sa.select(*shown).where(is_shown).order_by(columns.delivery).with_for_update()

        def work(tx: sa.Connection) -> None:
            for row in tx.execute(query).all():
                if changes := _changes(row, transfers[row.transfer_id]):
                    is_row = (columns.delivery == row.delivery) & (columns.transfer_id == row.transfer_id)
                    tx.execute(sa.update(self.table).where(is_row).values(conn_id=conn_id, **changes))

        self._run(work, patience=0.0)

    def show_error(self, key: str, error: str) -> None:
        """Store an attempt's error, as one line, unless the row is the copy of a forgotten delivery."""
        columns = self.table.c
        is_current = (columns.phase != "empty") | (columns.transfer_id == "")
        update = sa.update(self.table).where(columns.delivery == key, is_current).values(error=error)
        self._run(lambda tx: tx.execute(update), patience=0.0)

    def count_in_doubt(self, conn_id: str) -> int:
        """Return how many recent deliveries of a connection stay in doubt: longer than a task takes to find out."""
        columns, now = self.table.c, datetime.now(UTC)
        query = sa.select(sa.func.count()).where(
            columns.conn_id == conn_id,
            self.shown_status == IN_DOUBT,
            columns.created_at > now - _RECENT,
            columns.updated_at < now - _STAYS,
        )
        return int(self._run(lambda tx: tx.execute(query).scalar(), patience=0.0) or 0)

    @property
    def shown_status(self) -> sa.ColumnElement[str]:
        """What the page shows as a delivery's status."""
        columns = self.table.c
        is_unsent = columns.status.in_(["", DRAFT])
        return sa.case(
            (columns.phase == "sending", sa.case((is_unsent, IN_DOUBT), else_=columns.status)),
            (is_unsent & (columns.phase == ASKED), WAITS_FOR_APPROVAL),
            (columns.transfer_id != "", sa.case((is_unsent, DRAFT), else_=columns.status)),
            (columns.is_rehearsal, REHEARSED),
            (columns.error != "", FAILED),
            else_=NO_DRAFT,
        )

    def newest(self) -> datetime | None:
        """Return when a task wrote a delivery last; None if none has."""
        columns = self.table.c
        query = sa.select(sa.func.max(columns.updated_at)).where(columns.dag_id != "")
        return self._run(lambda tx: tx.execute(query).scalar(), patience=0.0)

    def delete(self, key: str) -> None:
        """Delete a row."""
        self._run(lambda tx: tx.execute(sa.delete(self.table).where(self.table.c.delivery == key)))

    def clean(self, older_than: datetime) -> int:
        """Delete the rows of task instances that were last written before ``older_than``; return how many.

        Rows of delivery keys stay, and those of drafts that may still be filled, sent or deleted.
        """
        columns = self.table.c
        delete = sa.delete(self.table).where(
            ~columns.is_keyed,
            columns.updated_at < older_than,
            columns.phase.in_(["empty", "sending"]),
        )
        return int(self._run(lambda tx: tx.execute(delete).rowcount))

    def _run(self, work: Callable[[sa.Connection], T], patience: float | None = None) -> T:
        """Run a transaction, again if it fails. The table is created once it turns out to be missing.

        :param patience: seconds for which it is repeated; those of this object if it is None.
        :raises DeliveriesUnavailable: it has failed for so long.
        """

        def attempt() -> T:
            try:
                return self._transact(work)
            except DBAPIError:
                if self._is_created:
                    raise
            self._create()
            return self._transact(work)

        try:
            return Retrying(
                retry=retry_if_exception(_may_pass),
                wait=wait_random_exponential(multiplier=0.1, max=5.0),
                stop=stop_after_delay(self._patience if patience is None else patience),
                before_sleep=self._log_wait,
                reraise=True,
            )(attempt)
        except OutboundTransferError:
            raise
        except Exception as error:
            raise DeliveriesUnavailable(
                f"Nothing more is done: the table of deliveries cannot be used, as {self.name} fails with "
                f"{words_of(error)}. A retry continues once that database responds and has room"
            ) from None  # its other lines may quote the row

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        with self.database.begin() as tx:
            return work(tx)

    def _create(self) -> None:
        """Create the table where it is missing.

        :raises UnusableDatabase: it is another one of this name.
        """
        self.database.create_tables([self.table])
        self._is_created = True

    def _log_wait(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("%s failed and is asked again: %s", self.name, words_of(error))


def _changes(row: Any, now: Shown | None) -> dict[str, Any]:
    """Return the columns that change. Erased values and known pickups are kept."""
    if now is None:
        return {"status": DELETED} if row.status not in TERMINAL_STATUSES else {}
    if status_rank(now.status) < status_rank(row.status or DRAFT):
        return {}
    recipients = json.loads(row.recipients)
    picked_up = {each["email"]: each["picked_up_at"] for each in recipients}
    if ERASED not in picked_up:  # erased recipients cannot be matched
        recipients = [
            {**each, "picked_up_at": each["picked_up_at"] or picked_up.get(each["email"])} for each in now.recipients
        ]
    error = row.error if row.phase == "empty" else ""  # says who forgot the delivery
    shown = {**now._asdict(), "error": error, "recipients": json.dumps(recipients, ensure_ascii=False)}
    shown["subject"] = ERASED if row.subject == ERASED else now.subject
    return {name: value for name, value in shown.items() if value != getattr(row, name)}


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
