"""The trigger that waits for a transfer without a worker slot. All waits of a connection share one poll."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseTrigger, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.client.models import to_builtins, to_summary_dict
from outbound_transfer.client.outcomes import OUTCOME_KEY, STATUS_HINTS, TransferOutcome, describe
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.observability import metrics
from outbound_transfer.waiting.wait import SKIP, SUCCEED, Rules, Wait, WaitEnd, skip_reason, wait_outcome

if TYPE_CHECKING:
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.waiting.poll import Poll, Show

log = logging.getLogger(__name__)

#: Number of waits in this process by connection.
_counts: Final[Counter[str]] = Counter()

_ARGUMENTS: Final = (
    "transfer_id",
    "outbound_transfer_conn_id",
    "poke_interval",
    "deadline",
    "rules",
    "end_from_trigger",
    "push_xcom",
)


class TransferTrigger(BaseTrigger):
    """Waits until a transfer reaches a terminal status, a deadline passes, or the service refuses the request.

    Fires once, with the fields of :class:`.WaitEnd`: ``{"status": "finished" | "timeout" | "error",
    "transfer": mapping or None, "message": text}``. With ``end_from_trigger``, it finishes the task instead if the
    outcome is success or skip.

    :param transfer_id: id of the sent transfer.
    :param outbound_transfer_conn_id: the connection.
    :param poke_interval: seconds between two polls.
    :param deadline: when the trigger times out, after one final poll; ISO 8601.
    :param rules: the fields of :class:`.Rules`.
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
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in _ARGUMENTS}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from outbound_transfer.waiting.poll import join_poll  # loads the client, which costs start-up time

        conn_id, deadline = self.outbound_transfer_conn_id, datetime.fromisoformat(self.deadline).timestamp()
        wait = Wait(self.transfer_id, self.poke_interval, deadline, Rules(**self.rules))
        with self._joined as joined:
            joined.enter_context(_count(conn_id))
            joined.enter_context(join_poll(conn_id, wait, partial(_new_poll, conn_id)))
            while isinstance(news := await wait.news.get(), str):
                self.log.log(logging.WARNING if news.endswith(STATUS_HINTS) else logging.INFO, "%s", news)
            yield await self._finish(news, wait.rules) or TriggerEvent(_payload(news))

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
                self.log.warning("Could not store the result from the triggerer; a worker does: %s", error)
                return None
        self.log.info("%s", describe(transfer))
        metrics.DELIVERIES.emit(outcome=wait_outcome(transfer.status), conn_id=self.outbound_transfer_conn_id)
        return TaskSkippedEvent() if outcome == SKIP else TaskSuccessEvent()

    def _xcom_of(self, outcome: str, transfer: Transfer) -> tuple[str, Any] | None:
        """Return key and value of the XCom of a task that finishes here; None if it has none."""
        if outcome == SKIP:
            return OUTCOME_KEY, to_builtins(TransferOutcome.from_transfer(transfer, skip_reason(transfer)))
        return ("return_value", to_summary_dict(transfer)) if self.push_xcom else None


def _payload(end: WaitEnd) -> dict[str, Any]:
    transfer = to_summary_dict(end.transfer) if end.transfer else None
    return {"status": end.status, "transfer": transfer, "message": end.message}


def _new_poll(conn_id: str) -> Poll:
    from outbound_transfer.client.retry import RetryPolicy
    from outbound_transfer.waiting.poll import Poll

    policy = RetryPolicy(max_attempts=3, timeout=600.0)  # the next poll is near
    return Poll(
        lambda: OutboundTransferHook(conn_id, policy=policy).get_conn(),
        partial(_on_poll, conn_id),
        partial(_open_page, conn_id),
    )


def _open_page(conn_id: str, settings: Settings) -> Show:
    """Return what stores transfers in the table of deliveries; nothing if that cannot be opened."""
    from outbound_transfer.delivery.place import find_rows  # not with a Dag file: they load SQLAlchemy
    from outbound_transfer.delivery.shown import show

    try:
        rows = find_rows()
    except Exception as error:
        log.warning("The page may show an older state of deliveries: %s: %s", type(error).__name__, error)
        rows = None

    def store(transfers: Sequence[Transfer]) -> None:
        if rows:
            show(conn_id, lambda: settings.account, {each.id: each for each in transfers}, rows)

    return store


def _on_poll(conn_id: str, seconds: float) -> None:
    metrics.POLL_DURATION.emit(seconds, conn_id=conn_id)
    _emit_count(conn_id)  # again: of a triggerer that is gone, the number expires


@contextmanager
def _count(conn_id: str) -> Iterator[None]:
    """Count one more wait while the block runs."""
    _counts[conn_id] += 1
    _emit_count(conn_id)
    try:
        yield
    finally:
        _counts[conn_id] -= 1
        _emit_count(conn_id)


def _emit_count(conn_id: str) -> None:
    metrics.DEFERRED_WAITERS.emit(_counts[conn_id], conn_id=conn_id, triggerer=socket.gethostname())


def _push_xcom(ti: Any, key: str, value: Any) -> None:
    # Airflow 3.3 encodes the ``xcoms`` of an event twice.
    from airflow.sdk.execution_time.xcom import XCom

    XCom.set(key, value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
