"""What the operators have in common that load the account's event feed (service-api.md, R40 to R47)."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, emit_asset_event
from outbound_transfer.client.errors import MalformedResponse
from outbound_transfer.client.models import to_epoch
from outbound_transfer.observability import metrics
from outbound_transfer.operators.arguments import ACCOUNT_CHECK, Check, check_all, to_optional, to_whole_number
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.operators.errors import DeferRequested, fail_without_retry_on_warehouse_errors
from outbound_transfer.transfers.progress import IngestProgress

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

    from outbound_transfer.client.errors import CallError
    from outbound_transfer.client.events import Page
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.store.destination import EventDestination
    from outbound_transfer.transfers.feed_ingest import FeedIngest


def _limit(name: str, value: Any, minimum: int) -> int | None:
    if to_optional(value) is None:
        return None
    return to_whole_number(name, value, minimum, expected=", or None")


#: Of the arguments that all destinations of the feed have.
FEED_CHECKS: Final = (
    ACCOUNT_CHECK,
    Check(("max_pages",), lambda number: _limit("max_pages", number, 1)),
    Check(("max_rejected",), lambda number: _limit("max_rejected", number, 0)),
)


class EventFeedOperator(OutboundTransferOperator):
    """Base class: load the event feed from the stored cursor to the end, every event exactly once.

    A subclass says where to (:meth:`_open_destination`) and which asset that is (:meth:`_asset`). The arguments here
    are described in :class:`~outbound_transfer.transfers.event_feed_to_sql.EventFeedToSqlOperator`.
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "account",
        "max_pages",
        "max_rejected",
    )

    #: The task makes no delivery.
    owns_delivery = False
    operator_extra_links = ()

    _ingest: FeedIngest
    #: Counts that a deferral brought back.
    _progress = IngestProgress()

    checks: tuple[Check, ...] = FEED_CHECKS

    def __init__(
        self,
        *,
        account: str | None,
        max_pages: int | None,
        max_rejected: int | None,
        outbound_transfer_conn_id: str,
        deferrable: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            outbound_transfer_conn_id=outbound_transfer_conn_id,
            deferrable=deferrable,
            **kwargs,
        )
        self.add_outlets([LOADED_ALIAS])
        self.account = account
        self.max_pages = max_pages
        self.max_rejected = max_rejected

    @abstractmethod
    def _open_destination(self, hook: OutboundTransferHook) -> EventDestination:
        """Return where the feed is loaded, of :meth:`_account`. Its modules are imported here, not with a DAG file."""

    @abstractmethod
    def _asset(self) -> Asset:
        """Return the asset that a run with events emits an event for."""

    def resume(
        self,
        context: Context,
        event: Any = None,
        *,
        progress: Any = None,
        **deferral: Any,
    ) -> Any:
        """Continue after a deferral. The destination has the cursor; ``progress`` only has the counts.

        ``dag.test()`` of Airflow 3.3 brings the event back alone: there, counts start again after a deferral.

        :param deferral: the other arguments of the base class.
        :raises msgspec.ValidationError: ``progress`` is invalid.
        """
        self._progress = msgspec.convert(progress or {}, IngestProgress)
        return super().resume(context, event, **deferral)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        before, self._progress = self._progress, IngestProgress()
        with fail_without_retry_on_warehouse_errors():
            check_all(self, self.checks)
            self._ingest = self._new_ingest(hook, before)
            progress = self._ingest.run()
        if progress.events:
            emit_asset_event(context, self._asset(), {"account": self._ingest.account, **progress.summary()})
        if progress.pages > 1:
            self.log.info("%s", progress)
        return progress.summary()

    def _account(self, hook: OutboundTransferHook) -> str:
        return self.account or hook.get_account()

    def _new_ingest(self, hook: OutboundTransferHook, progress: IngestProgress) -> FeedIngest:
        # Not at the top: what a destination needs would double what a DAG file's import takes.
        from outbound_transfer.transfers.feed_ingest import FeedIngest

        max_pages, max_rejected = _limit("max_pages", self.max_pages, 1), _limit("max_rejected", self.max_rejected, 0)
        destination = self._open_destination(hook)

        def sleep(seconds: float) -> None:
            if self.deferrable:
                raise DeferRequested(seconds)
            hook.sleep(seconds)

        def emit_metrics(page: Page, new_events: int) -> None:
            _emit_page_metrics(destination.account, page, new_events, time.time())

        return FeedIngest(
            lambda cursor: hook.read_events(cursor=cursor),
            destination,
            progress,
            address=hook.get_account(),
            max_pages=max_pages,
            max_rejected=max_rejected,
            sleep=sleep,
            on_page=emit_metrics,
        )

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        if isinstance(error, MalformedResponse):
            # The call used up the feed's minute, so another attempt now would be refused; the task's retries do better.
            raise error
        super()._on_retry(operation, error, seconds)
        self._ingest.log_poll(getattr(error, "status", None), str(error))

    def _resume_arguments(self, request: DeferRequested) -> dict[str, Any]:
        return {**super()._resume_arguments(request), "progress": msgspec.to_builtins(self._ingest.progress)}


def _emit_page_metrics(account: str, page: Page, new_events: int, now: float) -> None:
    """Emit the metrics of a loaded page.

    :param now: seconds since the epoch.
    """
    metrics.ROWS_LOADED.emit(new_events, table="events")
    metrics.REJECTED_LINES.emit(len(page.rejected), account=account)
    newest = to_epoch(page.events[-1].timestamp) if page.events and page.has_more else now
    if newest is not None:
        metrics.FEED_LAG.emit(max(now - newest, 0.0), account=account)
