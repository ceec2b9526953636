"""The operator that loads the account's event feed into a warehouse (service-api.md, R40 to R47)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, emit_asset_event, table_asset
from outbound_transfer.observability import metrics
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.protocol.errors import MalformedResponse
from outbound_transfer.protocol.models import to_epoch
from outbound_transfer.tasks.arguments import to_whole_number
from outbound_transfer.tasks.errors import fail_without_retry_on_warehouse_errors
from outbound_transfer.transfers.progress import IngestProgress, progress_from_event
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.deferral import DeferRequested
    from outbound_transfer.client.retry import RetryDetails
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.protocol.events import Page
    from outbound_transfer.transfers.feed_ingest import FeedIngest


class EventFeedToSqlOperator(OutboundTransferOperator):
    """Load the event feed into a SQL database, from the stored cursor to the end, every event exactly once.

    Each page is one transaction: its events, its rejected lines, a row of the log of polls, and the cursor. The cursor
    is stored in the warehouse and nowhere else. Tables (:mod:`outbound_transfer.warehouse.tables`) are created at first
    use, and those of an older version are upgraded. To read the feed again from its beginning:
    ``airflow outbound-transfer feed reset --to 0``.

    A run that loaded events emits an asset event for the ``events`` table
    (:func:`~outbound_transfer.assets.outbound_transfer.table_asset`). Its ``extra`` is the operator's return value,
    and ``account``.

    Rows that the database refuses because of their values are stored raw, or as rejected lines; the other rows are
    loaded. An ``X-Next-Cursor`` that is further beyond the lines of its page than usual for this feed is stored only
    after a second response, a minute later, claims about as much.

    :param sql_conn_id: connection of the warehouse: PostgreSQL, MySQL, MariaDB, SQLite, DuckDB, or another with a
        ``DbApiHook`` that passes a probe.
    :param table_prefix: prefix of the names of the tables.
    :param schema: existing schema of the tables. Default: the connection's own.
    :param account: name of the account in the tables. Default: its site address.
    :param max_pages: maximum number of pages to load, of up to 1,000 events each, one a minute. ``None``: no limit.
    :param max_rejected: maximum number of unparsable lines per page. If exceeded, the page is not loaded and the task
        fails without retry. ``None``: no limit.
    :param outbound_transfer_conn_id: connection of the service; its extra field ``event_api_key`` is the key.
    :param deferrable: whether to give the worker slot back between pages, and for delays that the service asks for.
    :return: a mapping: ``pages``, ``events``, ``new_events``, ``rejected``, ``cursor_from``, ``cursor_to``,
        ``has_more``, ``types`` (number of events by type).
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "sql_conn_id",
        "table_prefix",
        "schema",
        "account",
        "max_pages",
        "max_rejected",
    )

    #: The ledger counts the calls of this task; the task makes no delivery.
    owns_delivery = False

    _ingest: FeedIngest
    #: Counts that a deferral brought back.
    _progress = IngestProgress()

    def __init__(
        self,
        *,
        sql_conn_id: str,
        table_prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        account: str | None = None,
        max_pages: int | str | None = None,
        max_rejected: int | str | None = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, "outlets": [*(kwargs.get("outlets") or []), LOADED_ALIAS]})
        self.sql_conn_id = sql_conn_id
        self.table_prefix = table_prefix
        self.schema = schema
        self.account = account
        self.max_pages = max_pages
        self.max_rejected = max_rejected

    def resume(
        self,
        context: Context,
        event: Any = None,
        *,
        progress: Any = None,
        **deferral: Any,
    ) -> Any:
        """Continue after a deferral. The warehouse has the cursor; ``progress`` only has the counts.

        ``dag.test()`` of Airflow 3.3 brings the event back alone: there, counts start again after a deferral.

        :param deferral: the other arguments of the base class.
        :raises msgspec.ValidationError: ``progress`` is invalid.
        """
        self._progress = progress_from_event({} if progress is None else progress)
        return super().resume(context, event, **deferral)

    def run_task(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> dict[str, Any]:  # noqa: ARG002
        before, self._progress = self._progress, IngestProgress()
        with fail_without_retry_on_warehouse_errors():
            self._ingest = self._new_ingest(hook, before)
            progress = self._ingest.run()
        if progress.events:
            self._emit_asset_event(context, progress)
        if progress.pages > 1:
            self.log.info("%s", progress)
        return progress.summary()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return what was read and written; called by the OpenLineage provider if it is installed."""
        from outbound_transfer.lineage.openlineage import ingestion_lineage

        return ingestion_lineage("events", ("events", "rejected_lines", "feed_cursor", "feed_polls"), self)

    def _new_ingest(self, hook: OutboundTransferHook, progress: IngestProgress) -> FeedIngest:
        # Not at the top: the dialects of the warehouse would double what a DAG file's import takes.
        from outbound_transfer.transfers.feed_ingest import FeedIngest
        from outbound_transfer.warehouse.connection import open_warehouse
        from outbound_transfer.warehouse.events import EventStore

        max_pages, max_rejected = _limit("max_pages", self.max_pages, 1), _limit("max_rejected", self.max_rejected, 0)
        warehouse = open_warehouse(self.sql_conn_id, prefix=self.table_prefix, schema=self.schema)
        destination = EventStore(warehouse, self.account or hook.get_account())

        def sleep(seconds: float) -> None:
            self._defer_if_long(seconds, 0.0)
            if seconds > 0:
                destination.release()
            hook.sleep(seconds)

        def emit_metrics(page: Page, new_events: int) -> None:
            _emit_page_metrics(destination.account, page, new_events, time.time())

        return FeedIngest(
            lambda cursor: hook.read_events(cursor=cursor),
            destination,
            progress,
            max_pages=max_pages,
            max_rejected=max_rejected,
            sleep=sleep,
            on_page=emit_metrics,
        )

    def _emit_asset_event(self, context: Context, progress: IngestProgress) -> None:
        asset = table_asset("events", sql_conn_id=self.sql_conn_id, table_prefix=self.table_prefix)
        emit_asset_event(context, asset, {"account": self._ingest.account, **progress.summary()})

    def _on_retry(self, retry: RetryDetails) -> None:
        from outbound_transfer.client.retry import log_retry

        if isinstance(retry.caused_by, MalformedResponse):
            # The call used up the feed's minute, so another attempt now would be refused; the task's retries do better.
            raise retry.caused_by
        log_retry(retry)
        self._ingest.log_poll(getattr(retry.caused_by, "status", None), str(retry.caused_by))
        self._ingest.release()
        if retry.is_server_directed:
            self._defer_if_long(retry.wait_for, retry.waited_so_far + retry.wait_for)

    def _defer_if_long(self, seconds: float, waited: float) -> None:
        from outbound_transfer.client.deferral import MAX_BLOCKING_WAIT, DeferRequested

        if self.deferrable and seconds > MAX_BLOCKING_WAIT:
            raise DeferRequested(seconds, {"events": waited})

    def _resume_arguments(self, request: DeferRequested) -> dict[str, Any]:
        return {**super()._resume_arguments(request), **self._ingest.progress.as_kwargs()}


def _emit_page_metrics(account: str, page: Page, new_events: int, now: float) -> None:
    """Emit the metrics of a loaded page.

    :param now: seconds since the epoch.
    """
    metrics.ROWS_LOADED.emit(new_events, table="events")
    metrics.REJECTED_LINES.emit(len(page.rejected), account=account)
    newest = to_epoch(page.events[-1].timestamp) if page.events and page.has_more else now
    if newest is not None:
        metrics.FEED_LAG.emit(max(now - newest, 0.0), account=account)


def _limit(name: str, value: int | str | None, minimum: int) -> int | None:
    if value is None or str(value).strip() in ("", "None"):  # what a template makes of None
        return None
    return to_whole_number(value, name, minimum, expected=", or None")
