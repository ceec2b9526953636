"""The operator that keeps tables of sent transfers and their recipients current (service-api.md, R26)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Unpack

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, emit_asset_event, table_asset
from outbound_transfer.client.client import MAX_PAGE_SIZE
from outbound_transfer.client.errors import InvalidDelivery, MalformedResponse
from outbound_transfer.observability import metrics
from outbound_transfer.operators.arguments import ACCOUNT_CHECK, TABLE_CHECKS, check_all, check_literals
from outbound_transfer.operators.base import DEFAULT_CONN_ID, OutboundTransferOperator
from outbound_transfer.operators.errors import fail_without_retry_on_warehouse_errors
from outbound_transfer.store.config import DEFAULT_PREFIX
from outbound_transfer.store.errors import KeyOfAnotherUser

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.errors import CallError
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.operators.task_arguments import TaskArguments
    from outbound_transfer.store.transfers import SyncState, TransferTables

#: Number of pages in a row without a new transfer after which a listing is regarded as endless.
MAX_REPEATED_PAGES: Final = 3

#: Number of the newest known transfers that are read to find out whose key it is, if the newest page shows none.
MAX_KEY_CHECKS: Final = 5


class TransfersToSqlOperator(OutboundTransferOperator):
    """Store the listing of sent transfers, newest first, up to where no older transfer can have changed.

    A stored transfer that may still change and is no longer listed is read individually. Each page of up to 100
    transfers is one transaction; after a failed run, the next one continues correctly.

    A key that sees none of the connection's stored transfers is assumed to be another user's: the task fails and
    stores nothing, as such a key cannot show how these transfers have changed.

    :param sql_conn_id: connection of the warehouse: PostgreSQL, MySQL, MariaDB, SQLite or DuckDB.
    :param table_prefix: prefix of the table names.
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
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, **kwargs)
        self.add_outlets([LOADED_ALIAS])
        self.sql_conn_id, self.table_prefix, self.schema, self.account = sql_conn_id, table_prefix, schema, account
        check_literals(self, self.checks)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        from outbound_transfer.store.config import stores_recipients
        from outbound_transfer.store.tables import open_tables
        from outbound_transfer.store.transfers import TransferTables

        with fail_without_retry_on_warehouse_errors():
            check_all(self, self.checks)
            place = open_tables(self.sql_conn_id, prefix=self.table_prefix, schema=self.schema)
            account = self.account or hook.get_account()
            place.bind_account(account, hook.get_account())
            conn_id = self.outbound_transfer_conn_id
            tables = TransferTables(place, account, conn_id, stores_recipients=stores_recipients())
            result = self._sync(hook, tables, tables.sync_state())
            result["outstanding"] = len(tables.sync_state().outstanding)
        for table in ("transfers", "recipients"):
            asset = table_asset(table, sql_conn_id=self.sql_conn_id, table_prefix=self.table_prefix)
            emit_asset_event(context, asset, dict(result))
        return result

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return what was read and written; called by the OpenLineage provider if it is installed."""
        from outbound_transfer.operators.openlineage import ingestion_lineage

        return ingestion_lineage("transfers", ("transfers", "recipients"), self)

    def _sync(self, hook: OutboundTransferHook, tables: TransferTables, before: SyncState) -> dict[str, int]:
        from outbound_transfer.delivery.shown import show
        from outbound_transfer.store.transfers import is_storable, latest_sent_at

        seen, unreadable, cursor, newest = set[str](), dict[str, str](), None, None
        pages = new = repeated = 0
        is_whole = False
        while not is_whole and repeated < MAX_REPEATED_PAGES:
            requested_at = tables.now()
            page = hook.list_transfers(cursor=cursor)
            ids = {transfer.id for transfer in page.data}
            if pages == 0:
                newest = latest_sent_at(page.data, requested_at)
                self._check_key(hook, tables, before, ids)
            storable = {transfer.id: transfer for transfer in page.data if is_storable(transfer)}
            added = tables.save([*storable.values()], requested_at)
            show(self.outbound_transfer_conn_id, hook.get_account, storable)
            metrics.ROWS_LOADED.emit(added, table="transfers")
            repeated = 0 if ids - seen else repeated + 1
            seen |= ids
            unreadable |= {row.id: row.reason for row in page.unreadable}
            unreadable |= dict.fromkeys(ids - storable.keys(), "its id cannot be stored")
            pages, new, cursor = pages + 1, new + added, page.next_cursor
            # Whether every transfer that can be new or have changed was on a page.
            is_whole = cursor is None or before.covers(page.data, seen)
        missing = (before.outstanding.keys() | unreadable.keys()) - seen - {""}
        self._read_each(hook, tables, missing)
        if unreadable:
            self.log.warning("Rows of the listing that cannot be read as transfers, by id: %.1000s", unreadable)
        if newest and is_whole:
            tables.mark_listed(newest)
        return {"pages": pages, "transfers": len(seen), "new_transfers": new}

    def _check_key(
        self, hook: OutboundTransferHook, tables: TransferTables, before: SyncState, listed: set[str]
    ) -> None:
        """Check that the key belongs to the user whose transfers are stored: it must see at least one of them.

        :raises KeyOfAnotherUser: it sees none of them.
        """

        def is_seen(transfer_id: str) -> bool:
            with suppress(InvalidDelivery):  # such an id cannot be requested
                return hook.get_conn().find_transfer(transfer_id) is not None
            return False

        known = tables.newest_ids(MAX_PAGE_SIZE)
        if not known or listed & {*known, *before.outstanding} or any(map(is_seen, known[:MAX_KEY_CHECKS])):
            return
        raise KeyOfAnotherUser(
            f"the key of connection '{self.outbound_transfer_conn_id}' sees none of the transfers that are stored "
            "for it: it seems to be another user's. Nothing was stored. Restore the key, use a connection "
            "with another id, or delete the connection's rows in the tables transfers and transfer_sync: the next "
            "run then reads the whole listing"
        )

    def _read_each(self, hook: OutboundTransferHook, tables: TransferTables, transfer_ids: Iterable[str]) -> None:
        """Read and store transfers one by one. One that cannot be read stays as it is."""
        from outbound_transfer.delivery.shown import show

        for transfer_id in sorted(transfer_ids):
            requested_at = tables.now()
            try:
                transfer = hook.get_conn().find_transfer(transfer_id)
            except (InvalidDelivery, MalformedResponse) as error:
                self.log.warning("Could not read transfer '%.100s'; its row is unchanged: %s", transfer_id, error)
                continue
            if transfer:
                tables.save([transfer], requested_at)
            else:
                tables.mark_deleted(transfer_id, requested_at)
            show(self.outbound_transfer_conn_id, hook.get_account, {transfer_id: transfer})

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        if operation == "get" and isinstance(error, MalformedResponse):
            raise error  # the next run reads it again; the other transfers do not wait for it
        super()._on_retry(operation, error, seconds)
