"""Base class of the operators that load the account's event feed (service-api.md, R40 to R47)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outbound_transfer.assets.outbound_transfer import emit_asset_event
from outbound_transfer.client.errors import MalformedResponse
from outbound_transfer.operators.arguments import ACCOUNT_CHECK, Check, check_all, to_optional, to_whole_number
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.operators.errors import DeferRequested, fail_without_retry_on_warehouse_errors
from outbound_transfer.transfers.feed_ingest import FeedIngest, IngestProgress

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

    from outbound_transfer.client.errors import CallError
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.store.destination import EventDestination


def _limit(name: str, value: Any, minimum: int) -> int | None:
    return None if to_optional(value) is None else to_whole_number(name, value, minimum, expected=", or None")


#: Checks of the arguments that all feed destinations have.
FEED_CHECKS: Final = (
    ACCOUNT_CHECK,
    Check(("max_pages",), lambda number: _limit("max_pages", number, 1)),
    Check(("max_rejected",), lambda number: _limit("max_rejected", number, 0)),
)


class EventFeedOperator(OutboundTransferOperator):
    """Load the event feed from the stored cursor to the end. A subclass sets the destination and the arguments."""

    template_fields: Sequence[str] = (*OutboundTransferOperator.template_fields, "account", "max_pages", "max_rejected")
    owns_delivery = False
    operator_extra_links = ()

    account: str | None
    max_pages: int | None
    max_rejected: int | None

    _ingest: FeedIngest
    _progress = IngestProgress()  # counts that a deferral brought back

    @abstractmethod
    def _open_destination(self, account: str) -> EventDestination:
        """Return the destination of an account's feed. Its modules are imported here, not with a Dag file."""

    @abstractmethod
    def _asset(self) -> Asset:
        """Return the asset for which a run that loaded events emits an event."""

    def resume(self, context: Context, event: Any = None, *, progress: Any = None, **deferral: Any) -> Any:
        """Continue after a deferral, counting on from ``progress``, which ``dag.test()`` of Airflow 3.3 loses."""
        self._progress = msgspec.convert(progress or {}, IngestProgress)
        return super().resume(context, event, **deferral)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        def sleep(seconds: float) -> None:
            if self.deferrable:
                raise DeferRequested(seconds)
            hook.get_conn().sleep(seconds)

        before, self._progress = self._progress, IngestProgress()
        with fail_without_retry_on_warehouse_errors():
            check_all(self, self.checks)
            account = self.account or hook.get_account()
            self._ingest = FeedIngest(
                lambda cursor: hook.read_events(cursor=cursor),
                self._open_destination(account),
                before,
                address=hook.get_account(),
                max_pages=_limit("max_pages", self.max_pages, 1),
                max_rejected=_limit("max_rejected", self.max_rejected, 0),
                sleep=sleep,
            )
            progress = self._ingest.run()
        if progress.events:
            emit_asset_event(context, self._asset(), {"account": account, **progress.summary()})
        return progress.summary()

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        if isinstance(error, MalformedResponse):
            # The call used up this minute's request, so another one now would be refused; the task's retry comes later.
            raise error
        super()._on_retry(operation, error, seconds)
        self._ingest.log_poll(getattr(error, "status", None), str(error))

    def _resume_arguments(self, request: DeferRequested) -> dict[str, Any]:
        return {**super()._resume_arguments(request), "progress": msgspec.to_builtins(self._ingest.progress)}
