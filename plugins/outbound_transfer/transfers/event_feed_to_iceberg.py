"""The operator that loads the account's event feed into an Iceberg table (service-api.md, R40 to R47)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, iceberg_asset
from outbound_transfer.operators.arguments import Check, check_literals
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE
from outbound_transfer.store.config import check_table
from outbound_transfer.transfers.event_feed import FEED_CHECKS, EventFeedOperator

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from outbound_transfer.operators.task_arguments import TaskArguments
    from outbound_transfer.store.destination import EventDestination


class EventFeedToIcebergOperator(EventFeedOperator):
    """Load the event feed into an Iceberg table, from the stored cursor to the end, every page exactly once.

    Each page is one commit: its events, its rejected lines, and the cursor, which is a property of the table. The
    table is created at first use. An event that the feed repeats on another page is stored once for each page. To read
    the feed again from its beginning, run ``outbound-transfer feed reset --to 0``, which also deletes the rows.

    A run that loaded events emits an event of ``outbound_transfer.assets.outbound_transfer.iceberg_asset``, with
    the operator's return value and ``account`` as its ``extra``.

    :param iceberg_conn_id: connection of the catalog (``apache-airflow-providers-apache-iceberg`` 2.0 or newer).
    :param table: namespace and table, such as ``lake.outbound_transfer_events``. The namespace must exist.
    :param keep_snapshots_for: age below which the table's snapshots do not expire, so that readers can continue to use
        them. Older ones expire with the next page, except tags and branches.
    :param account: name of the account in the table. Default: its site address.
    :param max_pages: maximum number of pages to load (up to 1,000 events each, one page a minute). ``None``: no limit.
    :param max_rejected: maximum number of unparsable lines per page. If exceeded, the page is not loaded and the task
        fails without retry. ``None``: no limit.
    :param outbound_transfer_conn_id: connection of the service; its extra field ``event_api_key`` is the key.
    :param deferrable: free the worker slot between pages, and during delays that the service asks for.
    :return: a mapping: ``pages``, ``events``, ``new_events``, ``rejected``, ``cursor_from``, ``cursor_to``,
        ``has_more``, ``types`` (number of events by type).
    """

    template_fields: Sequence[str] = (*EventFeedOperator.template_fields, "iceberg_conn_id", "table")

    checks = (*FEED_CHECKS, Check(("table",), check_table))

    def __init__(
        self,
        *,
        iceberg_conn_id: str,
        table: str,
        keep_snapshots_for: timedelta = timedelta(hours=1),
        account: str | None = None,
        max_pages: int | None = None,
        max_rejected: int | None = 100,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, deferrable=deferrable, **kwargs)
        self.add_outlets([LOADED_ALIAS])
        self.iceberg_conn_id, self.table, self.keep_snapshots_for = iceberg_conn_id, table, keep_snapshots_for
        self.account, self.max_pages, self.max_rejected = account, max_pages, max_rejected
        check_literals(self, self.checks)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return what was read and written; called by the OpenLineage provider if it is installed."""
        from outbound_transfer.operators.openlineage import loading_lineage

        return loading_lineage("events", f"iceberg://{self.iceberg_conn_id}", (self.table,), self)

    def _open_destination(self, account: str) -> EventDestination:
        from outbound_transfer.lake.catalog import open_catalog

        catalog = open_catalog(self.iceberg_conn_id)  # says what to install before pyiceberg is imported
        from outbound_transfer.lake.iceberg import IcebergEventDestination

        return IcebergEventDestination(catalog, self.table, account, keep_snapshots_for=self.keep_snapshots_for)

    def _asset(self) -> Asset:
        return iceberg_asset(self.table, iceberg_conn_id=self.iceberg_conn_id)
