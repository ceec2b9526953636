"""The trigger that waits for a transfer without a worker slot. All waits of a connection share one poll."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.client import models
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.observability import metrics
from outbound_transfer.waiting.wait import SKIP, SUCCEED, Rules, Wait, WaitEnd, skip_reason, wait_outcome

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client


class TransferTrigger(BaseTrigger):
    """Waits until a transfer reaches a terminal status, a deadline passes, or the service refuses the request.

    Fires once, with the fields of ``WaitEnd``: ``{"status": "finished" | "timeout" | "error",
    "transfer": mapping or None, "message": text}``. With ``end_from_trigger``, it finishes the task instead if the
    outcome is success or skip.

    :param transfer_id: id of the sent transfer.
    :param outbound_transfer_conn_id: the connection.
    :param poke_interval: seconds between two polls.
    :param deadline: when the trigger times out, after one final poll; ISO 8601.
    :param rules: the fields of ``Rules``.
    :param end_from_trigger: finish the task in the triggerer, without a worker, if it does not fail.
    :param push_xcom: whether a task that finishes in the triggerer returns the transfer.
    """

    def __init__(
        self,
        transfer_id: str,
        outbound_transfer_conn_id: str,
        poke_interval: float,
        deadline: str,
        rules: Mapping[str, Any],
        end_from_trigger: bool = False,
        push_xcom: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.transfer_id = transfer_id
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.poke_interval = poke_interval
        self.deadline = deadline
        self.rules = rules
        self.end_from_trigger = end_from_trigger
        self.push_xcom = push_xcom
        self._joined = ExitStack()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {
            name: getattr(self, name) for name in signature(kind).parameters
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from outbound_transfer.waiting.poll import join_poll  # loads the client, which costs start-up time

        conn_id, deadline = self.outbound_transfer_conn_id, datetime.fromisoformat(self.deadline).timestamp()
        wait = Wait(self.transfer_id, self.poke_interval, deadline, Rules(**self.rules))
        with self._joined as joined:
            joined.enter_context(join_poll(conn_id, wait, partial(_open_client, conn_id)))
            while isinstance(news := await wait.news.get(), str):
                self.log.log(logging.WARNING if news.endswith(models.STATUS_HINTS) else logging.INFO, "%s", news)
            transfer = models.to_summary_dict(news.transfer) if news.transfer else None
            payload = {"status": news.status, "transfer": transfer, "message": news.message}
            yield await self._finish(news, wait.rules) or TriggerEvent(payload)

    async def cleanup(self) -> None:
        """Leave the poll, whose thread then ends at once if nobody else waits."""
        self._joined.close()

    async def _finish(self, end: WaitEnd, rules: Rules) -> TriggerEvent | None:
        """Return the event that finishes the task without a worker, or None if a worker must finish it.

        A failure always goes to a worker: callbacks, retries and ``soft_fail`` work only there.
        """
        # ``dag.test()``, whose triggers have no id, handles no event that finishes the task.
        if not self.end_from_trigger or self.trigger_id is None or end.status != "finished" or not end.transfer:
            return None
        outcome, transfer = rules.outcome_of(end.transfer), end.transfer
        if outcome not in (SKIP, SUCCEED):
            return None
        if pushed := self._xcom_of(outcome, transfer):
            try:
                await call_airflow(partial(_push_xcom, self.task_instance, *pushed))
            except Exception as error:  # an error of the trigger would fail the task
                self.log.warning("Could not store the result from the triggerer; a worker stores it: %s", error)
                return None
        self.log.info("%s", models.describe(transfer))
        metrics.DELIVERIES.emit(outcome=wait_outcome(transfer.status), conn_id=self.outbound_transfer_conn_id)
        return TaskSkippedEvent() if outcome == SKIP else TaskSuccessEvent()

    def _xcom_of(self, outcome: str, transfer: models.Transfer) -> tuple[str, Any] | None:
        """Return the key and value of the XCom of a task that finishes here; None if there is none."""
        if outcome == SKIP:
            reason = skip_reason(transfer)
            return models.OUTCOME_KEY, models.to_builtins(models.TransferOutcome.from_transfer(transfer, reason))
        return ("return_value", models.to_summary_dict(transfer)) if self.push_xcom else None


def _open_client(conn_id: str) -> Client:
    from outbound_transfer.client.client import RetryPolicy

    policy = RetryPolicy(max_attempts=3, timeout=600.0)  # the next poll is near
    return OutboundTransferHook(conn_id, policy=policy).get_conn()


def _push_xcom(ti: Any, key: str, value: Any) -> None:
    # Airflow 3.3 encodes the ``xcoms`` of an event twice.
    from airflow.sdk.execution_time.xcom import XCom

    XCom.set(key, value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
