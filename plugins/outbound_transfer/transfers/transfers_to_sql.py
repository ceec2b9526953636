"""Keep tables of sent transfers and their recipients current (service.md, GET /v1/transfers)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.transfers.common import LANDED, announce, failing_at_once, table_asset, warehouse_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.warehouse.transfers import Open, TransferTables


class TransfersToSqlOperator(OutboundTransferOperator):
    """Read the listing of sent transfers, newest first, until nothing older can have changed, and save it.

    Older transfers that may still change are looked for in the listing; one that has left it is read by itself. Each
    page of up to 100 is one transaction, and a run that ends early is made good by the next.

    :param sql_conn_id: the warehouse, as of ``EventFeedToSqlOperator``.
    :param table_prefix: begins the names of the tables.
    :param schema: where the tables are; the connection's own where not given. It must exist.
    :param account: what the account is called in the tables; its site address where not given.
    :return: a mapping: ``pages``, ``transfers`` (seen), ``new`` (not in the table before), ``open`` (may still change).
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "sql_conn_id",
        "table_prefix",
        "schema",
        "account",
    )

    def __init__(
        self,
        *,
        sql_conn_id: str,
        table_prefix: str = "outbound_transfer_",
        schema: str | None = None,
        account: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, "outlets": [*(kwargs.get("outlets") or []), LANDED]})
        self.sql_conn_id = sql_conn_id
        self.table_prefix = table_prefix
        self.schema = schema
        self.account = account

    def work(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> dict[str, Any]:  # noqa: ARG002
        from outbound_transfer.warehouse.progress import feed_name
        from outbound_transfer.warehouse.transfers import TransferTables

        with failing_at_once():
            warehouse = warehouse_of(self.sql_conn_id, self.table_prefix, self.schema)
            account = self.account or feed_name(hook.get_conn().settings.base_url)
            tables = TransferTables(warehouse, account, self.outbound_transfer_conn_id)
            result = self._listing(hook, tables, tables.open())
            result["open"] = len(tables.open().sent)
        self.log.info("Saw %(transfers)d transfers on %(pages)d pages, %(new)d new; %(open)d may still change", result)
        for table in ("transfers", "recipients"):
            announce(
                context, table_asset(table, sql_conn_id=self.sql_conn_id, table_prefix=self.table_prefix), dict(result)
            )
        return result

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """What was read and written; OpenLineage's provider calls it, where that is installed."""
        from outbound_transfer.transfers.lineage import lineage

        return lineage("transfers", ("transfers", "recipients"), self)

    def _listing(self, hook: OutboundTransferHook, tables: TransferTables, before: Open) -> dict[str, Any]:
        from outbound_transfer import metrics
        from outbound_transfer.warehouse.transfers import sent_at

        seen: set[str] = set()
        pages = new = 0
        newest = ""
        cursor: str | None = None
        while True:
            asked_at = tables.now()
            page = hook.list_transfers(cursor=cursor)
            landed = tables.save(page.data, asked_at)
            metrics.ROWS_LANDED.emit(landed, table="transfers")
            new += landed
            pages += 1
            newest = newest or (sent_at(page.data[0]) if page.data else "")
            seen.update(transfer.id for transfer in page.data)
            is_whole = page.next_cursor is None or before.is_enough(page.data, seen)
            if is_whole or page.next_cursor == cursor:
                break
            cursor = page.next_cursor
        for transfer_id in before.sent.keys() - seen:
            self._missed(hook, tables, transfer_id)
        if newest and is_whole:
            tables.listed(newest)
        return {"pages": pages, "transfers": len(seen), "new": new}

    @staticmethod
    def _missed(hook: OutboundTransferHook, tables: TransferTables, transfer_id: str) -> None:
        """One that has left the listing: canceled or deleted while it was paged, or its stored status is an old one."""
        from outbound_transfer.protocol.flows import find_transfer

        asked_at = tables.now()
        transfer = hook.run(find_transfer(transfer_id))
        if transfer is None:
            tables.remove(transfer_id, asked_at)
        else:
            tables.save([transfer], asked_at)
