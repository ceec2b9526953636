"""Base class of the notifiers: finds out what to say, in a worker, the DAG processor or the triggerer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.airflow_compat.names import BaseNotifier
from outbound_transfer.client.outcomes import TransferOutcome, outcome_of
from outbound_transfer.hooks.connection import settings_from_connection
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links.web import link_to
from outbound_transfer.notifications.notice import (
    TaskLocation,
    TransferNotice,
    build_notice,
    deadline_reason,
)

if TYPE_CHECKING:
    from airflow.sdk import Context


class TransferNotifier(BaseNotifier):
    """Notifies of a transfer: its subject, who has not picked it up, the reason, the task and a link.

    In ``on_failure_callback`` of an operator or sensor of this provider, the task's error says all that. Elsewhere,
    such as in a ``DeadlineAlert``, the transfer that ``task_id`` has made in the run is read from the service. What
    cannot be found out is left out: the notification goes out in any case.

    :param title: begins the title; by default how many recipients are outstanding. The subject follows it.
    :param task_id: the task of the run that delivers, if it is not the one that fails; not a mapped one.
    :param outbound_transfer_conn_id: by default that of the task that fails, otherwise ``outbound_transfer_default``.
    """

    template_fields: Sequence[str] = ("title", "task_id", "outbound_transfer_conn_id")

    def __init__(
        self,
        *,
        title: str | None = None,
        task_id: str | None = None,
        outbound_transfer_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.title = title
        self.task_id = task_id
        self.outbound_transfer_conn_id = outbound_transfer_conn_id

    @abstractmethod
    def build_sender(self, notice: TransferNotice) -> Any:
        """Return the notifier that sends this message."""

    def notify(self, context: Context) -> None:
        """Send the notification."""
        location = TaskLocation.from_context(dict(context), self.task_id)
        hook = self._hook(context)
        outcome = outcome_of(context.get("exception"))
        if outcome is None and (transfer_id := self._find_transfer_id(location)):
            try:
                with hook:
                    outcome = TransferOutcome.from_transfer(hook.get_transfer(transfer_id), "")
            except Exception as error:
                outcome = TransferOutcome(transfer_id, f"The transfer could not be read: {error}")
        self.build_sender(self._notice(context, location, outcome, self._url(hook, outcome))).notify(context)

    async def async_notify(self, context: Context) -> None:
        """Send the notification from the triggerer, in a thread."""
        await call_airflow(partial(self.notify, context))

    def _hook(self, context: Context) -> OutboundTransferHook:
        conn_id = self.outbound_transfer_conn_id or getattr(context.get("task"), "outbound_transfer_conn_id", None)
        return OutboundTransferHook(conn_id or OutboundTransferHook.default_conn_name)

    def _find_transfer_id(self, location: TaskLocation) -> str:
        """Return the id that the task has pushed or returned; "" if it has none or Airflow cannot be asked."""
        from airflow.sdk.execution_time.xcom import XCom

        if not (location.dag_id and location.run_id and location.task_id):
            return ""
        task = {"dag_id": location.dag_id, "run_id": location.run_id, "task_id": location.task_id}
        for key in ("transfer_id", "return_value"):  # the latter is the draft's id, or the transfer
            try:
                pushed = XCom.get_one(key=key, **task)
            except Exception as error:
                self.log.warning("Could not read which transfer task '%s' has made: %s", location.task_id, error)
                break
            found = pushed.get("id") if isinstance(pushed, Mapping) else pushed
            if found and isinstance(found, str):
                return found
        return ""

    def _notice(
        self, context: Context, location: TaskLocation, outcome: TransferOutcome | None, url: str
    ) -> TransferNotice:
        error = context.get("exception")
        reason = deadline_reason(dict(context)) or ("" if outcome or error is None else str(error))
        return build_notice(outcome, location, title=self.title, reason=reason, url=url, has_failed=error is not None)

    @staticmethod
    def _url(hook: OutboundTransferHook, outcome: TransferOutcome | None) -> str:
        with suppress(Exception):  # without a link, the notification still says what it has to
            if outcome:
                connection = hook.get_connection(hook.outbound_transfer_conn_id)
                return link_to(settings_from_connection(connection), outcome.transfer_id)
        return ""
