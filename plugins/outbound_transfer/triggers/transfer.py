"""Triggers that wait for transfers without a worker slot.

All triggers of one connection in one triggerer share one poll.
"""

from __future__ import annotations

import logging
import socket
from abc import abstractmethod
from asyncio import sleep
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseEventTrigger, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.airflow_compat.polls import AdvanceItem, SharedStreamProducer, subscribe
from outbound_transfer.airflow_compat.version import HAS_STATE_STORES
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.ledger.triggerer import TRIGGERER_LEDGER
from outbound_transfer.observability import metrics
from outbound_transfer.polling import schedule
from outbound_transfer.polling.waiters import Waiter, WaiterRegistry
from outbound_transfer.polling.watcher import CompletionWatcher
from outbound_transfer.protocol.digests import matches
from outbound_transfer.protocol.identity import identity_of
from outbound_transfer.protocol.models import Transfer, to_builtins, to_summary_dict
from outbound_transfer.protocol.outcomes import (
    OTHER_TRANSFER,
    OUTCOME_KEY,
    STATUS_HINTS,
    TERMINAL_STATUSES,
    Outcome,
    OutcomeRules,
    TransferOutcome,
    skip_reason,
    wait_outcome,
)

if TYPE_CHECKING:
    from outbound_transfer.client import Settings
    from outbound_transfer.cluster.poll import SharedPages
    from outbound_transfer.polling.poller import PollUpdate, SharedPoller

log = logging.getLogger(__name__)

#: Minimum seconds between two events of a watcher. Airflow may start no run for an event that follows another at once.
MIN_EVENT_INTERVAL: Final = 10.0

#: Key of a watcher's state in the state store of its asset.
_WATCHER_STATE_KEY: Final = "outbound_transfer_watcher"

#: Waiters and watchers in this process by connection. Never removed: a poll that is stopping may get a new subscriber.
_registries: Final[dict[str, WaiterRegistry]] = {}

#: Number of waiters in this process by connection.
_waiter_counts: Final[Counter[str]] = Counter()


class _SharedPollTrigger(BaseEventTrigger):
    """A trigger that subscribes to the shared poll of its connection (airflow.triggers.shared_stream)."""

    #: A deferred task's trigger runs in the queue of the task, a watcher's in any. Before Airflow 3.4: the second name.
    trigger_queue_inherited_from_task = supports_triggerer_queue = True

    def __init__(self, outbound_transfer_conn_id: str, poke_interval: float) -> None:
        """
        :param outbound_transfer_conn_id: the connection.
        :param poke_interval: seconds between two polls. 60 if the stored value is invalid.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.poke_interval = poke_interval

    def shared_stream_key(self) -> Hashable:
        return ("outbound_transfer", self.outbound_transfer_conn_id)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        conn_id = kwargs["outbound_transfer_conn_id"]
        return _Producer(_build_poller(conn_id, _registry_for(conn_id)))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the trigger's events. Triggerers before Airflow 3.3 and ``dag.test()`` run triggers this way."""
        registry = _registry_for(self.outbound_transfer_conn_id)
        updates = subscribe(self.shared_stream_key(), _build_poller(self.outbound_transfer_conn_id, registry).updates)
        async for event in self._events(registry, updates):
            yield event

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for event in self._events(_registry_for(self.outbound_transfer_conn_id), shared_stream):
            yield event

    @abstractmethod
    def _events(self, registry: WaiterRegistry, updates: AsyncIterator[PollUpdate]) -> AsyncIterator[TriggerEvent]:
        """Yield the trigger's events that follow from the updates of a poll."""


class TransferTrigger(_SharedPollTrigger):
    """Waits until a transfer reaches a terminal status, a deadline passes, or the service refuses the request.

    Fires once, with ``{"status": "finished" | "late" | "timeout" | "error", "transfer": mapping or None,
    "message": text}``. After ``late``, which has ``notify_after`` too, the task notifies and defers again.
    With ``finish_in_triggerer``, it finishes the task instead if the outcome is success or skip.

    :param transfer_id: id of the sent transfer.
    :param outbound_transfer_conn_id: the connection.
    :param poke_interval: seconds between two polls.
    :param deadline: when the trigger times out, after one final poll; ISO 8601.
    :param on_expired: outcome of an expired transfer: ``fail``, ``skip`` or ``succeed``.
    :param on_canceled: outcome of a canceled transfer: ``fail``, ``skip`` or ``succeed``.
    :param accept_partial: succeed as soon as one recipient has picked up.
    :param finish_in_triggerer: finish the task in the triggerer, without a worker, if it does not fail.
    :param push_xcom: whether a task that finishes in the triggerer returns the transfer.
    :param identity: digest of the subject and recipients of the sent transfer; "" if any transfer under
        the id is meant. Another one ends the wait with an error.
    :param notify_after: when the transfer is late, in seconds from its ``sent_at`` on; if negative, from its
        ``expires_at`` on. The first of these times is the one that counts.
    """

    def __init__(
        self,
        transfer_id: str,
        outbound_transfer_conn_id: str,
        poke_interval: float,
        deadline: str,
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        finish_in_triggerer: bool = False,
        push_xcom: bool = True,
        identity: str = "",
        notify_after: Sequence[float] = (),
    ) -> None:
        super().__init__(outbound_transfer_conn_id, poke_interval)
        self.transfer_id = transfer_id
        self.deadline = deadline
        self.on_expired = on_expired
        self.on_canceled = on_canceled
        self.accept_partial = accept_partial
        self.finish_in_triggerer = finish_in_triggerer
        self.push_xcom = push_xcom
        self.identity = identity
        self.notify_after = notify_after

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialize(
            self,
            "transfer_id",
            "outbound_transfer_conn_id",
            "poke_interval",
            "deadline",
            "on_expired",
            "on_canceled",
            "accept_partial",
            "finish_in_triggerer",
            "push_xcom",
            "identity",
            "notify_after",
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self.trigger_id is None:  # ``dag.test()`` handles no event that finishes the task
            self.finish_in_triggerer = False
        async for event in super().run():
            yield event

    async def _events(
        self, registry: WaiterRegistry, updates: AsyncIterator[PollUpdate]
    ) -> AsyncIterator[TriggerEvent]:
        try:
            waiting = self._build_waiter()
        except (TypeError, ValueError, OverflowError) as error:  # stored by another version, or not by this package
            yield TriggerEvent(
                {"status": "error", "transfer": None, "message": f"Invalid arguments of the stored trigger: {error}"}
            )
            return
        with registry.register(waiting) as waiter, _count_waiter(self.outbound_transfer_conn_id):
            async for update in updates:
                if update.warning:
                    self.log.warning("%s", update.warning)
                finished = await self._finish_event(waiter) if waiter.result else None
                if waiter.result and not finished:
                    del waiter.log_messages[-1:]  # the worker logs it
                if not waiter.result and waiter.log_messages and waiter.transfer and waiter.transfer.picked_up_count:
                    self._record(waiter.transfer)  # more have picked up, as a rule
                while waiter.log_messages:
                    message = waiter.log_messages.pop(0)
                    self.log.log(logging.WARNING if message.endswith(STATUS_HINTS) else logging.INFO, "%s", message)
                if waiter.result:
                    yield finished or TriggerEvent(self._checked_result(waiter))
                    return

    def _build_waiter(self) -> Waiter:
        """:raises TypeError, ValueError, OverflowError: a stored argument is invalid."""
        return Waiter(
            self.transfer_id,
            self.poke_interval,
            datetime.fromisoformat(self.deadline).timestamp(),
            OutcomeRules.from_arguments(self.on_expired, self.on_canceled, accept_partial=self.accept_partial),
            polled_at=schedule.now(),
            notify_after=tuple(map(float, self.notify_after)),
        )

    async def _finish_event(self, waiter: Waiter) -> TriggerEvent | None:
        """Return the event that finishes the task without a worker, or None if a worker must finish it.

        A failure always goes to a worker: callbacks, retries and ``soft_fail`` work only there.
        """
        outcome = waiter.rules.outcome_of(waiter.transfer) if self.finish_in_triggerer and waiter.transfer else None
        if waiter.transfer is not None and not self._is_meant(waiter.transfer):
            return None
        if outcome not in (Outcome.SKIP, Outcome.SUCCEED) or waiter.transfer is None:
            return None
        if pushed := self._xcom_of(outcome, waiter.transfer):
            try:
                await call_airflow(partial(_push_xcom, self.task_instance, *pushed))
            except Exception as error:  # an error of the trigger would start the wait again
                self.log.warning("Could not store the result from the triggerer; a worker does: %s", error)
                return None
        self._record(waiter.transfer)
        metrics.DELIVERIES.emit(outcome=wait_outcome(waiter.transfer.status), conn_id=self.outbound_transfer_conn_id)
        return TaskSkippedEvent() if outcome is Outcome.SKIP else TaskSuccessEvent()

    def _xcom_of(self, outcome: Outcome, transfer: Transfer) -> tuple[str, Any] | None:
        """Return key and value of the XCom of a task that finishes here; None if it has none."""
        if outcome is Outcome.SKIP:
            return OUTCOME_KEY, to_builtins(TransferOutcome.from_transfer(transfer, skip_reason(transfer)))
        return ("return_value", to_summary_dict(transfer)) if self.push_xcom else None

    def _is_meant(self, transfer: Transfer) -> bool:
        """Return whether the transfer has the subject and recipients of the one that was sent."""
        return not self.identity or matches(self.identity, identity_of(transfer))

    def _checked_result(self, waiter: Waiter) -> dict[str, Any] | None:
        """Return the waiter's result, or an error if it is about another transfer than the one that was sent."""
        if waiter.transfer is None or self._is_meant(waiter.transfer):
            return waiter.result
        return {"status": "error", "transfer": None, "message": OTHER_TRANSFER}

    def _record(self, transfer: Transfer) -> None:
        """Record the transfer in the ledger, as no worker does now."""
        conn_id = self.outbound_transfer_conn_id
        TRIGGERER_LEDGER.record_transfer(transfer, conn_id, OutboundTransferHook(conn_id).get_async_account)


class TransferOutcomeTrigger(_SharedPollTrigger):
    """Emits an event when transfers visible to the connection's key reach a terminal status, for an ``AssetWatcher``.

    Fires ``{"transfers": [mapping, …]}`` with all transfers that one poll has found: one event, as Airflow does not
    start a run for each of several events at the same time. Each transfer is reported once. The state is stored in the
    asset's state store after the event is stored, so a killed triggerer loses no transfer. If it is killed in the
    second or two between the two, the next one reports the same transfers again; ``id`` and ``status`` identify them.

    Transfers that finished before the first poll are not reported. Give each asset a trigger with arguments of its
    own: the state cannot be stored for several assets.

    :param outcomes: statuses to report: ``complete``, ``expired``, ``canceled``.
    :param outbound_transfer_conn_id: the connection.
    :param poke_interval: seconds between two polls.
    :raises ValueError: an outcome is not one of these; or Airflow is older than 3.3, and cannot store the state.
    """

    def __init__(
        self,
        outcomes: Sequence[str] = TERMINAL_STATUSES,
        outbound_transfer_conn_id: str = "outbound_transfer_default",
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__(outbound_transfer_conn_id, poke_interval)
        if not outcomes or not set(outcomes) <= set(TERMINAL_STATUSES):
            raise ValueError(f"outcomes must be some of {', '.join(TERMINAL_STATUSES)}, not {outcomes!r}")
        self.outcomes = list(outcomes)
        if not HAS_STATE_STORES:
            raise ValueError("TransferOutcomeTrigger needs Airflow 3.3 or newer, which stores what it has reported")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialize(self, "outcomes", "outbound_transfer_conn_id", "poke_interval")

    async def _events(
        self, registry: WaiterRegistry, updates: AsyncIterator[PollUpdate]
    ) -> AsyncIterator[TriggerEvent]:
        store, state = self.asset_state_store, None
        try:
            state = await call_airflow(partial(store.get, _WATCHER_STATE_KEY)) if store else None
        except ValueError:  # Airflow runs one trigger for all assets whose watchers have equal arguments
            self.log.warning(
                "Several assets share this trigger, so its state cannot be stored: transfers that finish while no "
                "triggerer runs are not reported. Give each asset a trigger with arguments of its own."
            )
            store = None
        with registry.register_watcher(
            CompletionWatcher(self.poke_interval, schedule.now().monotonic, state)
        ) as watcher:
            next_event_at = -inf
            async for update in updates:
                if update.warning:
                    self.log.warning("%s", update.warning)
                if watcher.has_finished:
                    await sleep(next_event_at - schedule.now().monotonic)
                finished, state = watcher.drain()
                if transfers := [
                    to_summary_dict(transfer) for transfer in finished if transfer.status in self.outcomes
                ]:
                    yield TriggerEvent({"transfers": transfers})
                    next_event_at = schedule.now().monotonic + MIN_EVENT_INTERVAL
                if store and state:
                    update.on_stored.append(partial(call_airflow, partial(store.set, _WATCHER_STATE_KEY, state)))


class _Producer(SharedStreamProducer):
    """Runs the poll for the triggerer. Airflow confirms when the events of an update are stored."""

    def __init__(self, poller: SharedPoller) -> None:
        self._poller = poller

    async def open_stream(self) -> AsyncIterator[tuple[PollUpdate, PollUpdate]]:
        async for update in self._poller.updates():
            yield update, update

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            for store in item.broker_payload.on_stored:
                try:
                    await store()
                except Exception:  # raising would stop all waiters of the connection; a later state includes this one
                    log.exception("Could not store a watcher's state; transfers may be reported again after a restart")


def _registry_for(conn_id: str) -> WaiterRegistry:
    return _registries.setdefault(conn_id, WaiterRegistry())


def _build_poller(conn_id: str, registry: WaiterRegistry) -> SharedPoller:
    from outbound_transfer.polling.poller import SharedPoller

    hook = OutboundTransferHook(conn_id, is_poll=True)
    return SharedPoller(
        registry,
        hook.get_async_settings,
        new_client=hook.new_async_client,
        on_poll=partial(_on_poll, conn_id),
        find_shared=partial(_find_shared, conn_id),
    )


async def _find_shared(conn_id: str, settings: Settings) -> SharedPages | None:
    from outbound_transfer.cluster.poll import find_shared_pages  # loads the warehouse

    return await call_airflow(partial(find_shared_pages, settings, conn_id))


def _on_poll(conn_id: str, seconds: float) -> None:
    metrics.POLL_DURATION.emit(seconds, conn_id=conn_id)
    _emit_waiters(conn_id)  # again: of a triggerer that is gone, the number expires


@contextmanager
def _count_waiter(conn_id: str) -> Iterator[None]:
    """Count one more waiter while the block runs."""
    _waiter_counts[conn_id] += 1
    _emit_waiters(conn_id)
    try:
        yield
    finally:
        _waiter_counts[conn_id] -= 1
        _emit_waiters(conn_id)


def _emit_waiters(conn_id: str) -> None:
    metrics.DEFERRED_WAITERS.emit(_waiter_counts[conn_id], conn_id=conn_id, triggerer=socket.gethostname())


def _serialize(trigger: BaseEventTrigger, *names: str) -> tuple[str, dict[str, Any]]:
    kind = type(trigger)
    return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(trigger, name) for name in names}


def _push_xcom(ti: Any, key: str, value: Any) -> None:
    # Airflow 3.3 encodes the ``xcoms`` of an event twice.
    from airflow.sdk.execution_time.xcom import XCom

    XCom.set(key, value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
