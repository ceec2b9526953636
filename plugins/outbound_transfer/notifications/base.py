"""Base class of the notifiers: builds the message, in a worker, the Dag processor or the triggerer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.sdk import BaseNotifier

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.client.models import DRAFT, TransferOutcome, outcome_of
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links.transfer import find_web_url, transfer_url
from outbound_transfer.wording import clean, pluralize

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Maximum number of addresses in a notification.
MAX_ADDRESSES: Final = 20


class TransferNotice(NamedTuple):
    """A notification in plain text. Each line may quote what others wrote, so escape it.

    :ivar title: one line.
    :ivar url: the transfer in the web application; "" if there is no link.
    """

    title: str
    lines: Sequence[str]
    url: str = ""


class TransferNotifier(BaseNotifier):
    """Notifies about a transfer: its subject, who has not picked it up, the reason, the task and a link.

    In ``on_failure_callback`` of an operator or sensor of this provider, the task's error has these details. Elsewhere,
    such as in a ``DeadlineAlert``, the transfer that ``task_id`` created in the run is read from the service. Unknown
    details are left out: the notification is sent in any case.

    :param title: begins the title, before the subject; by default, how many recipients have not picked up.
    :param task_id: the run's task that delivers, if it is not the one that fails; it must not be mapped.
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
        self.title, self.task_id = title, task_id
        self.outbound_transfer_conn_id = outbound_transfer_conn_id

    @abstractmethod
    def build_sender(self, notice: TransferNotice) -> Any:
        """Return the notifier that sends this message."""

    def notify(self, context: Context) -> None:
        """Send the notification."""
        task, error = _locate(context, self.task_id), context.get("exception")
        of_task = getattr(context.get("task"), "outbound_transfer_conn_id", None)
        conn_id = self.outbound_transfer_conn_id or of_task or OutboundTransferHook.default_conn_name
        outcome, url = outcome_of(error), ""
        if outcome is None and (transfer_id := self._find_transfer_id(task)):
            try:
                with OutboundTransferHook(conn_id) as hook:
                    outcome = TransferOutcome.from_transfer(hook.get_transfer(transfer_id), "")
            except Exception as problem:
                outcome = TransferOutcome(transfer_id, f"The transfer could not be read: {problem}")
        reason = "" if error is None else str(error)
        if outcome:
            reason, url = outcome.reason, transfer_url(find_web_url(conn_id), outcome.transfer_id)
        if isinstance(deadline := context.get("deadline"), Mapping):
            reason = f"The run has not finished by its deadline, {deadline.get('deadline_time')}"
        heading = self.title or ("Failed without a transfer" if error and outcome is None else "")
        notice = build_notice(outcome, " / ".join(filter(None, task.values())), title=heading, reason=reason, url=url)
        self.build_sender(notice).notify(context)

    async def async_notify(self, context: Context) -> None:
        """Send the notification from the triggerer, in a thread."""
        await call_airflow(partial(self.notify, context))

    def _find_transfer_id(self, task: Mapping[str, str]) -> str:
        """Return the id that the task pushed or returned; "" if there is none or Airflow does not respond."""
        from airflow.sdk.execution_time.xcom import XCom

        keys = ("transfer_id", "return_value") if all(task.values()) else ()
        for key in keys:  # the latter is the draft's id, or the transfer
            try:
                pushed = XCom.get_one(key=key, **task)
            except Exception as error:
                self.log.warning("Could not read which transfer task '%s' created: %s", task["task_id"], error)
                break
            found = pushed.get("id") if isinstance(pushed, Mapping) else pushed
            if found and isinstance(found, str):
                return found
        return ""


def _locate(context: Mapping[str, Any], task_id: str | None) -> dict[str, str]:
    """Return the task of a callback, or of a deadline alert, whose context has only the run; "" for unknown values."""
    ti, run = context.get("ti"), context.get("dag_run")
    run = run if isinstance(run, Mapping) else {name: getattr(run, name, "") for name in ("dag_id", "run_id")}
    return {
        "dag_id": str(run.get("dag_id") or getattr(ti, "dag_id", "")),
        "run_id": str(run.get("dag_run_id") or run.get("run_id") or getattr(ti, "run_id", "")),
        "task_id": task_id or str(getattr(ti, "task_id", "")),
    }


def build_notice(
    outcome: TransferOutcome | None, task: str, *, title: str | None = None, reason: str = "", url: str = ""
) -> TransferNotice:
    """Put an outcome into words.

    :param outcome: None if the task has no transfer.
    :param title: replaces the first words of the title.
    """
    said = {"Task": task, "Reason": " ".join(str(redact(reason)).split())}
    lines = [f"{what}: {clean(text, 500)}" for what, text in said.items() if text]
    if outcome is None:
        return TransferNotice(clean(title or "No transfer yet"), lines)
    status = outcome.status if outcome.status is not None else "in an unknown status"
    waiting, picked_up = outcome.not_picked_up, outcome.picked_up
    if waiting is None or picked_up is None:
        pickups, heading = "it is not known who has picked it up", "Pickup not known"
    elif not waiting:
        pickups, heading = "all recipients have picked up", "Picked up by all"
    else:
        more = f" and {len(waiting) - MAX_ADDRESSES} more" if len(waiting) > MAX_ADDRESSES else ""
        named = ", ".join(map(clean, waiting[:MAX_ADDRESSES]))
        pickups = f"not picked up by {pluralize(len(waiting), 'recipient')}: {named}{more}"
        heading = f"Not picked up by {len(waiting)} of {len(waiting) + len(picked_up)}"
    heading = title or ("Not sent" if status == DRAFT else heading)
    subject = f": {clean(outcome.subject, 150)}" if outcome.subject else ""
    first = f"Transfer {clean(outcome.transfer_id)} is {clean(status)}; {pickups}"
    return TransferNotice(f"{clean(heading)}{subject}", [first, *lines], url)
