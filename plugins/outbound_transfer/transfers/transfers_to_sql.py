"""Keep tables of sent transfers and their recipients current (service.md, GET /v1/transfers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.transfers.common import LANDED, announce, failing_at_once, table_asset, warehouse_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.retry import Wait
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.warehouse.transfers import Open, TransferTables


#: Pages in a row that may show nothing new before the listing is taken to have no end.
FRUITLESS: Final = 3


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
        from outbound_transfer.warehouse.transfers import is_storable, newest_of

        seen: set[str] = set()
        unreadable: dict[str, str] = {}
        pages = new = fruitless = 0
        newest = ""
        cursor: str | None = None
        while True:
            asked_at = tables.now()
            page = hook.list_transfers(cursor=cursor)
            storable = [transfer for transfer in page.data if is_storable(transfer)]
            landed = tables.save(storable, asked_at)
            metrics.ROWS_LANDED.emit(landed, table="transfers")
            new += landed
            pages += 1
            if pages == 1:
                newest = newest_of(page.data, asked_at)
            fruitless = 0 if {transfer.id for transfer in page.data} - seen else fruitless + 1
            seen.update(transfer.id for transfer in page.data)
            unreadable |= {row.id: row.reason for row in page.unreadable}
            unreadable |= {one.id: "no id that can be stored" for one in page.data if not is_storable(one)}
            is_whole = page.next_cursor is None or before.is_enough(page.data, seen)
            if is_whole or page.next_cursor == cursor or fruitless == FRUITLESS:
                break
            cursor = page.next_cursor
        self._one_by_one(hook, tables, (before.sent.keys() | unreadable.keys()) - seen - {""})
        self._say_unreadable(unreadable)
        if newest and is_whole:
            tables.listed(newest)
        return {"pages": pages, "transfers": len(seen), "new": new}

    def _say_unreadable(self, unreadable: Mapping[str, str]) -> None:
        if unreadable:
            some = "; ".join(f"{row[:100] or '?'}: {reason}" for row, reason in [*unreadable.items()][:5])
            self.log.warning("%d rows of the listing are no transfers as documented: %s", len(unreadable), some)

    def _one_by_one(self, hook: OutboundTransferHook, tables: TransferTables, transfer_ids: Set[str]) -> None:
        """Read those that the listing did not show: one that cannot be read stops no other, and is not gone."""
        from outbound_transfer.protocol.errors import InvalidDelivery, MalformedAnswer

        for transfer_id in sorted(transfer_ids):
            try:
                self._missed(hook, tables, transfer_id)
            except (InvalidDelivery, MalformedAnswer) as error:
                self.log.warning("Transfer %.100s cannot be read, and stays as it was: %s", transfer_id, error)

    def _on_wait(self, wait: Wait) -> None:
        from outbound_transfer.protocol.errors import MalformedAnswer
        from outbound_transfer.protocol.exchange import Operation

        if wait.call.operation is Operation.GET and isinstance(wait.error, MalformedAnswer):
            raise wait.error  # the next run is repeat enough, and the others need not wait for it
        super()._on_wait(wait)

    @staticmethod
    def _missed(hook: OutboundTransferHook, tables: TransferTables, transfer_id: str) -> None:
        """One that has left the listing: canceled or deleted while it was paged, or its stored status is an old one."""
        from outbound_transfer.protocol.flows import find_transfer

        asked_at = tables.now()
        transfer = hook.run(find_transfer(transfer_id))
        if transfer is None:
            tables.remove(transfer_id, asked_at)
        elif transfer.id == transfer_id:
            tables.save([transfer], asked_at)
