"""Land the account's event feed in a warehouse (service.md, GET /v1/events)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowFailException

from outbound_transfer.operators.base import LONGEST_HELD_WAIT, LongWait
from outbound_transfer.transfers.common import LANDED, announce, failing_at_once, table_asset, warehouse_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.retry import Wait
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.protocol.feed import Page
    from outbound_transfer.warehouse.feed import FeedTables
    from outbound_transfer.warehouse.progress import Progress

#: Seconds from one successful answer to the next (service.md, Limits: one successful request per account per 60 s).
FEED_INTERVAL: Final = 60.0

_sleep = time.sleep


class EventFeedToSqlOperator(BaseOperator):
    """Read the event feed from where it was left to its end, and land every event exactly once.

    Each page is one transaction: its events, its rejected lines, a row of the log of polls, and the cursor. The cursor
    is kept in the warehouse and nowhere else. Tables (:mod:`outbound_transfer.warehouse.tables`) are created at first
    use, and those of an older version upgraded. To read the feed again from its beginning:
    ``airflow outbound-transfer feed reset --to 0``.

    Rows that the database refuses for what they hold are kept raw, or as rejected lines; they stop no others. An
    ``X-Next-Cursor`` that is further beyond a page's lines than this feed's have been is believed when a second answer,
    a minute later, claims as much, or half of it.

    :param sql_conn_id: the warehouse: a PostgreSQL, SQLite or DuckDB connection, or any other of a ``DbApiHook``.
    :param table_prefix: begins the names of the tables.
    :param schema: where the tables are; the connection's own where not given. It must exist.
    :param feed: what the account is called in the tables; its site address where not given.
    :param max_pages: how many pages (of up to 1,000 events, one a minute) to read at most; no limit where not given.
    :param max_rejected: how many lines of one page may be no events; with more, nothing of the page is landed and the
        task fails without a retry. ``None`` for no limit.
    :param outbound_transfer_conn_id: the service's connection; its extra field ``event_api_key`` is the key.
    :param deferrable: whether the feed's minute, and waits that the service asks for, free the worker slot.
    An asset event of the events' table (:func:`outbound_transfer.transfers.common.table_asset`) follows a run that has
    landed any; its ``extra`` is what the operator returns, and ``feed``.

    :return: a mapping: ``pages``, ``events``, ``new_events`` (not in the warehouse before), ``rejected``,
        ``cursor_from``, ``cursor_to``, ``has_more``, and ``types`` (events by type).
    :raises AirflowFailException: a retry would fail alike: a refused key, a cursor that the feed refuses, too many
        rejected lines, a connection that cannot be used.
    """

    template_fields: Sequence[str] = (
        "outbound_transfer_conn_id",
        "sql_conn_id",
        "table_prefix",
        "schema",
        "feed",
        "max_pages",
        "max_rejected",
    )

    #: The ledger counts its calls; it makes no deliveries.
    delivers = False

    def __init__(
        self,
        *,
        sql_conn_id: str,
        table_prefix: str = "outbound_transfer_",
        schema: str | None = None,
        feed: str | None = None,
        max_pages: int | str | None = None,
        max_rejected: int | str | None = 100,
        outbound_transfer_conn_id: str = "outbound_transfer_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, "outlets": [*(kwargs.get("outlets") or []), LANDED]})
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.sql_conn_id = sql_conn_id
        self.table_prefix = table_prefix
        self.schema = schema
        self.feed = feed
        self.max_pages = max_pages
        self.max_rejected = max_rejected
        self.deferrable = deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        return self._drain(context, {})

    def resume(self, context: Context, event: Any = None, *, progress: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """Go on after a wait. Where to go on is asked of the warehouse; ``progress`` only counts.

        ``dag.test()`` of Airflow 3.3 brings back the event alone: there, counts begin anew after a wait.
        """
        return self._drain(context, {} if progress is None else progress)

    def _drain(self, context: Context, brought: Any) -> dict[str, Any]:
        from outbound_transfer.ledger.recording import recording
        from outbound_transfer.warehouse.errors import CursorMoved
        from outbound_transfer.warehouse.progress import progress_of

        progress = progress_of(brought)
        max_pages, max_rejected = _limit("max_pages", self.max_pages, 1), _limit("max_rejected", self.max_rejected, 0)
        try:
            with (
                failing_at_once(),
                self.hook(on_wait=self._on_wait, waited={"events": progress.waited}) as hook,
                recording(self, context, hook),
            ):
                self._feed = tables = self._tables(hook)
                with tables.warehouse.kept():
                    self._cursor = tables.cursor()
                    while True:
                        page = self._read(hook)
                        answered = time.monotonic()
                        believed = tables.believes(page)
                        if believed:
                            page, new_events = self._land(page, max_rejected)
                            progress = self._landed(progress, page, new_events)
                            self._cursor = page.next_cursor
                            if not page.has_more or (max_pages is not None and progress.pages >= max_pages):
                                break
                        self._wait_out(FEED_INTERVAL - (time.monotonic() - answered), confirm=not believed)
        except CursorMoved as moved:
            self._log_poll(200, f"not landed: {moved}")
            self.log.warning(
                "%s: another reader landed the page, or the cursor was set anew. This task stops; nothing is lost",
                moved,
            )
        except LongWait as long:
            self._defer(long, progress)
        self._announce(context, progress)
        if progress.pages > 1:
            self.log.info("%s", progress)
        return progress.summary()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """What was read and written; OpenLineage's provider calls it, where that is installed."""
        from outbound_transfer.transfers.lineage import lineage

        return lineage("events", ("events", "rejected_lines", "feed_cursor", "feed_polls"), self)

    def _announce(self, context: Context, progress: Progress) -> None:
        """Tell the events' asset which pages have new rows; DAGs that are scheduled on it read just those."""
        if progress.events:
            asset = table_asset("events", sql_conn_id=self.sql_conn_id, table_prefix=self.table_prefix)
            announce(context, asset, {"feed": self._feed.feed, **progress.summary()})

    def _read(self, hook: OutboundTransferHook) -> Page:
        from outbound_transfer.protocol.errors import CallError

        try:
            return hook.read_events(cursor=self._cursor)
        except CallError as error:
            self._log_poll(getattr(error, "status", None), str(error))
            raise

    def _log_poll(self, status: int | None, note: str) -> None:
        """A poll that landed nothing; what keeps it from the log must not hide what went wrong."""
        from outbound_transfer.warehouse.feed import Poll

        try:
            self._feed.log(Poll(cursor_from=self._cursor, status=status, note=note))
        except Exception as error:
            self.log.warning("This poll is not in the log of polls: %s", error)

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        """The connection; ``client_options`` as of :class:`outbound_transfer.client.Client`."""
        from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

        return OutboundTransferHook(self.outbound_transfer_conn_id, **client_options)

    def _tables(self, hook: OutboundTransferHook) -> FeedTables:
        from outbound_transfer.warehouse.feed import FeedTables
        from outbound_transfer.warehouse.progress import feed_name

        warehouse = warehouse_of(self.sql_conn_id, self.table_prefix, self.schema)
        return FeedTables(warehouse, self.feed or feed_name(hook.get_conn().settings.base_url))

    def _land(self, page: Page, max_rejected: int | None) -> tuple[Page, int]:
        """Land a page; as it was landed, and how many of its events are new."""
        from outbound_transfer.warehouse.errors import RowsRefused

        self._check_rejected(page, max_rejected)
        try:
            return page, self._feed.land(page)
        except RowsRefused as refused:  # each time fewer, so this ends
            self.log.warning("%s: they are kept raw, or as rejected lines", refused)
            return self._land(refused.page, max_rejected)

    def _landed(self, progress: Progress, page: Page, new_events: int) -> Progress:
        from outbound_transfer.transfers.common import show_page

        self.log.info(
            "Landed %d events (%d new) and %d rejected lines; cursor %d to %d, %s",
            len(page.events),
            new_events,
            len(page.rejected),
            page.cursor,
            page.next_cursor,
            "more to come" if page.has_more else "caught up",
        )
        show_page(self._feed.feed, page, new_events, time.time())
        return progress.after(page, new_events)

    def _check_rejected(self, page: Page, max_rejected: int | None) -> None:
        if max_rejected is None or len(page.rejected) <= max_rejected:
            return
        first = page.rejected[0]
        said = (
            f"{len(page.rejected)} lines of the page after cursor {page.cursor} are no events, and max_rejected is "
            f"{max_rejected}; nothing of the page was landed. The first is line {first.line}: {first.reason}."
        )
        self._log_poll(200, said)
        raise AirflowFailException(f"{said} Look at the feed; to keep such lines raw and go on, raise max_rejected.")

    def _on_wait(self, wait: Wait) -> None:
        """Told of each wait before the call is repeated."""
        from outbound_transfer.client.retry import log_wait
        from outbound_transfer.protocol.errors import MalformedAnswer

        if isinstance(wait.error, MalformedAnswer):
            # It spent the feed's minute, so a repeat at once is refused: the task's own retries do better.
            raise wait.error
        log_wait(wait)
        self._log_poll(getattr(wait.error, "status", None), str(wait.error))
        self._feed.warehouse.rest()
        if wait.is_asked_for:
            self._defer_if_long(wait.seconds, wait.waited + wait.seconds)

    def _wait_out(self, seconds: float, *, confirm: bool = False) -> None:
        why = (
            "The cursor of its answer is far beyond its lines, so the feed is asked again"
            if confirm
            else "There is more"
        )
        self.log.info("%s; the feed answers once a minute: the next page in %.0f s", why, max(seconds, 0.0))
        self._defer_if_long(seconds, 0.0)
        if seconds > 0:
            self._feed.warehouse.rest()
        _sleep(max(seconds, 0.0))

    def _defer_if_long(self, seconds: float, waited: float) -> None:
        if self.deferrable and seconds > LONGEST_HELD_WAIT:
            raise LongWait(seconds, {"events": waited})

    def _defer(self, long: LongWait, progress: Progress) -> None:
        import msgspec

        self.defer(
            trigger=long.trigger(),
            method_name="resume",
            kwargs=msgspec.structs.replace(progress, waited=long.waited["events"]).as_kwargs(),
        )


def _limit(name: str, value: int | str | None, least: int) -> int | None:
    if value is None or str(value).strip() in ("", "None"):  # what a template makes of None
        return None
    try:
        limit = int(value)
    except ValueError:
        limit = least - 1
    if limit < least:
        raise AirflowFailException(f"{name} must be a whole number from {least} on, or None, not {value!r}")
    return limit
