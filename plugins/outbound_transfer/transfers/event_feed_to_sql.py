"""The operator that loads the account's event feed into a SQL database (service-api.md, R40 to R47)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, table_asset
from outbound_transfer.operators.arguments import TABLE_CHECKS, check_literals
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE
from outbound_transfer.store.config import DEFAULT_PREFIX
from outbound_transfer.transfers.event_feed import FEED_CHECKS, EventFeedOperator

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from outbound_transfer.operators.task_arguments import TaskArguments
    from outbound_transfer.store.destination import EventDestination


class EventFeedToSqlOperator(EventFeedOperator):
    """Load the event feed into a SQL database, from the stored cursor to the end, every event exactly once.

    Each page is one transaction: its events, its rejected lines, a row in the poll log, and the cursor. Tables
    (``outbound_transfer.store.tables``) are created at first use. Rows that the database refuses because of their
    values are stored as rejected lines. To read the feed again from its beginning, run
    ``outbound-transfer feed reset --to 0``.

    A run that loaded events emits an event of ``outbound_transfer.assets.outbound_transfer.table_asset``, with the
    operator's return value and ``account`` as its ``extra``.

    :param sql_conn_id: connection of the warehouse: PostgreSQL, MySQL, MariaDB, SQLite or DuckDB.
    :param table_prefix: prefix of the table names.
    :param schema: existing schema of the tables. Default: the connection's own.
    :param account: name of the account in the tables. Default: its site address.
    :param max_pages: maximum number of pages to load (up to 1,000 events each, one page a minute). ``None``: no limit.
    :param max_rejected: maximum number of unparsable lines per page. If exceeded, the page is not loaded and the task
        fails without retry. ``None``: no limit.
    :param outbound_transfer_conn_id: connection of the service; its extra field ``event_api_key`` is the key.
    :param deferrable: free the worker slot between pages, and during delays that the service asks for.
    :return: a mapping: ``pages``, ``events``, ``new_events``, ``rejected``, ``cursor_from``, ``cursor_to``,
        ``has_more``, ``types`` (number of events by type).
    """

    template_fields: Sequence[str] = (*EventFeedOperator.template_fields, "sql_conn_id", "table_prefix", "schema")

    checks = (*FEED_CHECKS, *TABLE_CHECKS)

    def __init__(
        self,
        *,
        sql_conn_id: str,
        table_prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        account: str | None = None,
        max_pages: int | None = None,
        max_rejected: int | None = 100,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, deferrable=deferrable, **kwargs)
        self.add_outlets([LOADED_ALIAS])
        self.sql_conn_id, self.table_prefix, self.schema = sql_conn_id, table_prefix, schema
        self.account, self.max_pages, self.max_rejected = account, max_pages, max_rejected
        check_literals(self, self.checks)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return what was read and written; called by the OpenLineage provider if it is installed."""
        from outbound_transfer.operators.openlineage import ingestion_lineage

        return ingestion_lineage("events", ("events", "rejected_lines", "feed_cursor", "feed_polls"), self)

    def _open_destination(self, account: str) -> EventDestination:
        from outbound_transfer.store.events import EventStore
        from outbound_transfer.store.tables import open_tables

        return EventStore(open_tables(self.sql_conn_id, prefix=self.table_prefix, schema=self.schema), account)

    def _asset(self) -> Asset:
        return table_asset("events", sql_conn_id=self.sql_conn_id, table_prefix=self.table_prefix)
