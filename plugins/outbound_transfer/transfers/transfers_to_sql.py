"""The operator that keeps tables of sent transfers and their recipients current (service-api.md, R26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, emit_asset_event, table_asset
from outbound_transfer.client.client import MAX_PAGE_SIZE
from outbound_transfer.client.errors import InvalidDelivery, MalformedResponse
from outbound_transfer.observability import metrics
from outbound_transfer.operators.arguments import ACCOUNT_CHECK, TABLE_CHECKS, check_all, check_literals
from outbound_transfer.operators.base import DEFAULT_CONN_ID, OutboundTransferOperator
from outbound_transfer.operators.errors import fail_without_retry_on_warehouse_errors
from outbound_transfer.store.naming import DEFAULT_PREFIX
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.errors import CallError
    from outbound_transfer.client.models import Transfer, TransferPage
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.store.transfers import SyncState, TransferTables


#: Number of pages in a row without a new transfer after which a listing is regarded as endless.
MAX_REPEATED_PAGES: Final = 3

#: Number of the newest known transfers that are read to find out whose key it is, if the newest page shows none.
MAX_KEY_CHECKS: Final = 5


class TransfersToSqlOperator(OutboundTransferOperator):
    """Store the listing of sent transfers, newest first, up to where no older transfer can have changed.

    A stored transfer that may still change and is no longer listed is read individually. Each page of up to 100
    transfers is one transaction; after a run that failed, the next one continues correctly.

    A key that sees none of the transfers that the tables have for the connection is taken for another user's: the task
    fails and stores nothing, as such a key says nothing about these transfers.

    :param sql_conn_id: connection of the warehouse: PostgreSQL, MySQL, MariaDB, SQLite or DuckDB.
    :param table_prefix: prefix of the names of the tables.
    :param schema: existing schema of the tables. Default: the connection's own.
    :param account: name of the account in the tables. Default: its site address.
    :param outbound_transfer_conn_id: connection of the service.
    :return: a mapping of counts: ``pages``, ``transfers`` (seen), ``new_transfers`` (not in the table before),
        ``outstanding`` (may still change).
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "sql_conn_id",
        "table_prefix",
        "schema",
        "account",
    )
    #: The task makes no delivery.
    owns_delivery = False
    operator_extra_links = ()

    checks = (ACCOUNT_CHECK, *TABLE_CHECKS)

    def __init__(
        self,
        *,
        sql_conn_id: str,
        table_prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        account: str | None = None,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, **kwargs)
        self.add_outlets([LOADED_ALIAS])
        self.sql_conn_id = sql_conn_id
        self.table_prefix = table_prefix
        self.schema = schema
        self.account = account
        check_literals(self, self.checks)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        from outbound_transfer.store.accounts import bind_account
        from outbound_transfer.store.config import stores_recipients
        from outbound_transfer.store.connection import open_tables
        from outbound_transfer.store.transfers import TransferTables

        with fail_without_retry_on_warehouse_errors():
            check_all(self, self.checks)
            place = open_tables(self.sql_conn_id, prefix=self.table_prefix, schema=self.schema)
            account = self.account or hook.get_account()
            bind_account(place, account, hook.get_account())
            tables = TransferTables(
                place, account, self.outbound_transfer_conn_id, stores_recipients=stores_recipients()
            )
            result = self._sync(hook, tables, tables.sync_state())
            result["outstanding"] = len(tables.sync_state().outstanding)
        self.log.info(
            "Saw %s on %s, %d new; %d may still change",
            pluralize(result["transfers"], "transfer"),
            pluralize(result["pages"], "page"),
            result["new_transfers"],
            result["outstanding"],
        )
        for table in ("transfers", "recipients"):
            emit_asset_event(
                context, table_asset(table, sql_conn_id=self.sql_conn_id, table_prefix=self.table_prefix), dict(result)
            )
        return result

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return what was read and written; called by the OpenLineage provider if it is installed."""
        from outbound_transfer.operators.openlineage import ingestion_lineage

        return ingestion_lineage("transfers", ("transfers", "recipients"), self)

    def _sync(self, hook: OutboundTransferHook, tables: TransferTables, before: SyncState) -> dict[str, Any]:
        from outbound_transfer.store.transfers import latest_sent_at

        read, newest = _Listing(before), None
        while not read.is_over:
            requested_at = tables.now()
            page = hook.list_transfers(cursor=read.cursor)
            if read.pages == 0:
                newest = latest_sent_at(page.data, requested_at)
                self._check_key(hook, tables, before, {transfer.id for transfer in page.data})
            storable = read.add(page)
            new_rows = tables.save(storable, requested_at)
            read.new += new_rows
            self._show(hook, {transfer.id: transfer for transfer in storable})
            metrics.ROWS_LOADED.emit(new_rows, table="transfers")
        self._refresh_each(hook, tables, read.missing)
        self._log_unreadable(read.unreadable)
        if newest and read.is_whole:
            tables.mark_listed(newest)
        return {"pages": read.pages, "transfers": len(read.seen), "new_transfers": read.new}

    def _check_key(
        self, hook: OutboundTransferHook, tables: TransferTables, before: SyncState, listed: Set[str]
    ) -> None:
        """Check that the key belongs to the user whose transfers the tables have: it sees at least one of them.

        :raises KeyOfAnotherUser: it sees none of them.
        """
        from outbound_transfer.store.errors import KeyOfAnotherUser

        if before.synced_until is None or listed & before.outstanding.keys():
            return
        known = tables.newest_ids(MAX_PAGE_SIZE)
        if not known or listed & set(known) or _sees_any(hook, known[:MAX_KEY_CHECKS]):
            return
        raise KeyOfAnotherUser(
            f"the key of connection '{self.outbound_transfer_conn_id}' sees none of the transfers that the tables "
            "have for it: it seems to be another user's. Nothing was stored. Restore the key, use a connection "
            "with another id, or delete the connection's row in the table transfer_sync: the next run then reads "
            "the whole listing, and marks outstanding transfers that this key does not see as deleted"
        )

    def _log_unreadable(self, unreadable: Mapping[str, str]) -> None:
        if unreadable:
            some = "; ".join(f"{row[:100] or '?'}: {reason}" for row, reason in [*unreadable.items()][:5])
            self.log.warning(
                "%s of the listing cannot be read as a transfer: %s", pluralize(len(unreadable), "row"), some
            )

    def _refresh_each(self, hook: OutboundTransferHook, tables: TransferTables, transfer_ids: Set[str]) -> None:
        """Read transfers that were not listed, one by one. One that cannot be read is skipped and stays as it is."""
        for transfer_id in sorted(transfer_ids):
            try:
                self._refresh_unlisted(hook, tables, transfer_id)
            except (InvalidDelivery, MalformedResponse) as error:
                self.log.warning("Could not read transfer '%.100s'; its row is unchanged: %s", transfer_id, error)

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        if operation == "get" and isinstance(error, MalformedResponse):
            raise error  # the next run reads it again; the other transfers do not wait for it
        super()._on_retry(operation, error, seconds)

    def _show(self, hook: OutboundTransferHook, transfers: Mapping[str, Transfer | None]) -> None:
        """Update the rows of listed deliveries, for the page."""
        from outbound_transfer.delivery.shown import show

        show(self.outbound_transfer_conn_id, hook.get_account, transfers)

    def _refresh_unlisted(self, hook: OutboundTransferHook, tables: TransferTables, transfer_id: str) -> None:
        """Update a transfer that is no longer listed: it was canceled or deleted, or its stored status is outdated."""
        requested_at = tables.now()
        transfer = hook.get_conn().find_transfer(transfer_id)
        if transfer is None:
            tables.mark_deleted(transfer_id, requested_at)
        elif transfer.id == transfer_id:
            tables.save([transfer], requested_at)
        else:
            return
        self._show(hook, {transfer_id: transfer})


class _Listing:
    """How far one run has read the listing.

    :ivar cursor: of the next page.
    :ivar seen: ids of the transfers on all pages.
    :ivar unreadable: by id, why a row cannot be stored.
    :ivar is_whole: whether every transfer that can be new or have changed was on a page.
    :ivar is_over: whether no page is left to read; a listing may be endless.
    """

    def __init__(self, before: SyncState) -> None:
        self._before, self._repeated = before, 0
        self.cursor: str | None = None
        self.pages = self.new = 0
        self.seen: set[str] = set()
        self.unreadable: dict[str, str] = {}
        self.is_whole = self.is_over = False

    def add(self, page: TransferPage) -> list[Transfer]:
        """Note a page; return its transfers that can be stored."""
        from outbound_transfer.store.transfers import is_storable

        ids = {transfer.id for transfer in page.data}
        self.pages += 1
        self._repeated = 0 if ids - self.seen else self._repeated + 1
        self.seen |= ids
        self.unreadable |= {row.id: row.reason for row in page.unreadable}
        self.unreadable |= {one.id: "its id cannot be stored" for one in page.data if not is_storable(one)}
        self.is_whole = page.next_cursor is None or self._before.covers(page.data, self.seen)
        self.is_over = self.is_whole or page.next_cursor == self.cursor or self._repeated == MAX_REPEATED_PAGES
        self.cursor = page.next_cursor
        return [transfer for transfer in page.data if is_storable(transfer)]

    @property
    def missing(self) -> Set[str]:
        """Ids of the transfers to read individually: they may have changed, and no page has shown them."""
        return (self._before.outstanding.keys() | self.unreadable.keys()) - self.seen - {""}


def _sees_any(hook: OutboundTransferHook, transfer_ids: Sequence[str]) -> bool:
    """Return whether the key sees one of these transfers.

    :raises MalformedResponse: it is unknown, because a response could not be decoded and no other shows a transfer.
    """
    problem: MalformedResponse | None = None
    for transfer_id in transfer_ids:
        try:
            if hook.get_conn().find_transfer(transfer_id) is not None:
                return True
        except InvalidDelivery:  # such an id cannot be requested
            continue
        except MalformedResponse as error:
            problem = error
    if problem is not None:
        raise problem
    return False
