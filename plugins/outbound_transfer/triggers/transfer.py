"""Triggers: the part of a wait that holds no worker slot. All of one connection share one poll in a triggerer."""

from __future__ import annotations

import logging
import socket
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseEventTrigger, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from outbound_transfer.protocol.outcomes import FINAL

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors

    from outbound_transfer.client import Settings
    from outbound_transfer.polling.poll import News, Poll
    from outbound_transfer.polling.waits import Wait, Waits
    from outbound_transfer.protocol.models import Transfer

log = logging.getLogger(__name__)

#: Who waits in this process, by connection. Kept when empty: a poll that is being stopped may get a new subscriber.
_waits: Final[dict[str, Waits]] = {}

#: How many wait in this process, by connection.
_in_flight: Final[Counter[str]] = Counter()

#: Where a watcher keeps what it knows, in its asset's state store.
STATE_KEY: Final = "outbound_transfer_watch"


class _SharesPoll(BaseEventTrigger):
    """A trigger that lives on the shared poll of its connection (airflow.triggers.shared_stream)."""

    supports_triggerer_queue = True

    def __init__(self, outbound_transfer_conn_id: str, poke_interval: float) -> None:
        """
        :param poke_interval: what is no interval is as 60 seconds: it may be stored since long.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.poke_interval = poke_interval

    def shared_stream_key(self) -> Hashable:
        return ("outbound_transfer", self.outbound_transfer_conn_id)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        conn_id = kwargs["outbound_transfer_conn_id"]
        return _Producer(_poll(conn_id, _waits_of(conn_id)))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The same on a poll of its own; ``dag.test()`` runs triggers so."""
        from outbound_transfer.polling.waits import Waits

        waits = Waits()
        async for event in self._follow(waits, _poll(self.outbound_transfer_conn_id, waits).news()):
            yield event

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for event in self._follow(_waits_of(self.outbound_transfer_conn_id), shared_stream):
            yield event

    @abstractmethod
    def _follow(self, waits: Waits, news: AsyncIterator[News]) -> AsyncIterator[TriggerEvent]:
        """The trigger's events, as the news bring them about."""


class TransferTrigger(_SharesPoll):
    """Waits until a transfer's status is final, a deadline passes, or the service refuses.

    Fires once, with ``{"ending": "ended" | "timed out" | "failed", "transfer": mapping or None, "message": text}``;
    or ends the task where that is asked for and its outcome is to succeed or to skip.

    :param transfer_id: the sent transfer.
    :param poke_interval: seconds between two looks.
    :param deadline: ISO 8601 instant; one last look precedes giving up.
    :param on_expired, on_canceled, accept_partial: as of :class:`~outbound_transfer.sensors.transfer.TransferSensor`.
    :param finish: end the task in the triggerer, without a worker.
    :param push: whether the task returns the transfer, then.
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
        finish: bool = False,
        push: bool = True,
    ) -> None:
        super().__init__(outbound_transfer_conn_id, poke_interval)
        self.transfer_id = transfer_id
        self.deadline = deadline
        self.on_expired = on_expired
        self.on_canceled = on_canceled
        self.accept_partial = accept_partial
        self.finish = finish
        self.push = push

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialized(
            self,
            "transfer_id",
            "outbound_transfer_conn_id",
            "poke_interval",
            "deadline",
            "on_expired",
            "on_canceled",
            "accept_partial",
            "finish",
            "push",
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # Where the triggerer does not run the shared poll, nothing takes a task's end from here either.
        self.finish = False
        async for event in super().run():
            yield event

    async def _follow(self, waits: Waits, news: AsyncIterator[News]) -> AsyncIterator[TriggerEvent]:
        try:
            asked = self._wait()
        except (TypeError, ValueError, OverflowError) as error:  # stored by an older version, or not by this package
            yield TriggerEvent({"ending": "failed", "transfer": None, "message": f"This is no wait: {error}"})
            return
        with waits.joined(asked) as wait, _counted(self.outbound_transfer_conn_id):
            async for one in news:
                if one.trouble:
                    self.log.warning("%s", one.trouble)
                finished = self._finished(wait) if wait.end else None
                if wait.end and not finished:
                    del wait.remarks[-1:]  # the worker says it
                while wait.remarks:
                    self.log.info("%s", wait.remarks.pop(0))
                if wait.end:
                    yield finished or TriggerEvent(wait.end)
                    return

    def _wait(self) -> Wait:
        """:raises TypeError, ValueError, OverflowError: what is asked for is none."""
        from outbound_transfer.polling.schedule import now
        from outbound_transfer.polling.waits import Wait
        from outbound_transfer.protocol.outcomes import Outcome, OutcomeRules

        return Wait(
            self.transfer_id,
            self.poke_interval,
            datetime.fromisoformat(self.deadline).timestamp(),
            OutcomeRules(Outcome(self.on_expired), Outcome(self.on_canceled), self.accept_partial),
            looked=now(),
        )

    def _finished(self, wait: Wait) -> TriggerEvent | None:
        """The event that ends the task without a worker, where that is asked for and the task does not fail.

        Only on a worker do callbacks, retries and ``soft_fail`` mean for a failure what they should.
        """
        from outbound_transfer.protocol.models import as_listed
        from outbound_transfer.protocol.outcomes import Outcome

        outcome = wait.rules.of(wait.seen) if self.finish and wait.seen else None
        if outcome not in (Outcome.SKIP, Outcome.SUCCEED) or wait.seen is None:
            return None
        self._tell(wait.seen)
        if outcome is Outcome.SKIP:
            return TaskSkippedEvent()
        if self.push:
            _push(self.task_instance, as_listed(wait.seen))
        return TaskSuccessEvent()

    def _tell(self, transfer: Transfer) -> None:
        """No worker will tell the ledger."""
        from outbound_transfer.ledger.triggerer import DESK

        DESK.ended(transfer, self.outbound_transfer_conn_id)


class TransferOutcomeTrigger(_SharesPoll):
    """Tells of every transfer of the key that ends, for an ``AssetWatcher``: a DAG may be scheduled on it.

    Fires ``{"transfers": [mapping, …]}`` for the ends that one look has shown: one event, as Airflow 3.3 does not
    start a run for each of several that come at once. Each end is told once; what is known is kept in the asset's
    state store when the event is stored, so that a triggerer that is killed loses none. Killed in the second or two
    between these two, the next tells the same ends again: ``id`` and ``status`` name an end.

    Ends before the first look are not told; the first look notes which transfers are outstanding. Give each asset a
    trigger with arguments of its own: what is known cannot be kept for several at once.

    :param outcomes: which ends to tell of: ``complete``, ``expired``, ``canceled``.
    :param poke_interval: seconds between two looks.
    """

    def __init__(
        self,
        outcomes: Sequence[str] = FINAL,
        outbound_transfer_conn_id: str = "outbound_transfer_default",
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__(outbound_transfer_conn_id, poke_interval)
        if not outcomes or not set(outcomes) <= set(FINAL):
            raise ValueError(f"outcomes must be some of {', '.join(FINAL)}, not {outcomes!r}")
        self.outcomes = list(outcomes)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialized(self, "outcomes", "outbound_transfer_conn_id", "poke_interval")

    async def _follow(self, waits: Waits, news: AsyncIterator[News]) -> AsyncIterator[TriggerEvent]:
        from outbound_transfer.polling.schedule import now
        from outbound_transfer.polling.watch import Watch
        from outbound_transfer.protocol.models import as_listed

        store, state = await self._kept()
        with waits.watched(Watch(self.poke_interval, now().steady, state)) as watch:
            async for one in news:
                if one.trouble:
                    self.log.warning("%s", one.trouble)
                ended, state = watch.take()
                if transfers := [as_listed(transfer) for transfer in ended if transfer.status in self.outcomes]:
                    yield TriggerEvent({"transfers": transfers})
                if store and state:
                    one.once_told.append(partial(store.aset, STATE_KEY, state))

    async def _kept(self) -> tuple[AssetStateStoreAccessors | None, Any]:
        """Where to keep what is known, and what was kept there; nowhere where no asset is watched."""
        store = self.asset_state_store
        try:
            return store, await store.aget(STATE_KEY) if store else None
        except ValueError:  # Airflow runs one trigger for all assets whose watchers are alike, and each has a store
            self.log.warning("Several assets have this trigger: what ends while no triggerer runs is not told of")
            return None, None


class _Producer(SharedStreamProducer):
    """The poll as the triggerer runs it; Airflow confirms what was stored of each of its news."""

    def __init__(self, poll: Poll) -> None:
        self._poll = poll

    async def open_stream(self) -> AsyncIterator[tuple[News, News]]:
        async for news in self._poll.news():
            yield news, news

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            for store in item.broker_payload.once_told:
                try:
                    await store()
                except Exception:  # it would end every wait of the connection; a later state holds this one too
                    log.exception("What a watcher knows could not be kept; ends may be told again after a restart")


def _waits_of(conn_id: str) -> Waits:
    from outbound_transfer.polling.waits import Waits

    return _waits.setdefault(conn_id, Waits())


def _poll(conn_id: str, waits: Waits) -> Poll:
    from outbound_transfer.polling.poll import Poll

    return Poll(waits, partial(_settings, conn_id), conn_id=conn_id, on_look=partial(_looked, conn_id))


def _looked(conn_id: str, seconds: float) -> None:
    from outbound_transfer import metrics
    from outbound_transfer.ledger.triggerer import DESK

    metrics.POLL_DURATION.emit(seconds, conn_id=conn_id)
    DESK.count()


@contextmanager
def _counted(conn_id: str) -> Iterator[None]:
    """One wait more is in flight while the block runs."""
    _in_flight[conn_id] += 1
    _show_waits(conn_id)
    try:
        yield
    finally:
        _in_flight[conn_id] -= 1
        _show_waits(conn_id)


def _show_waits(conn_id: str) -> None:
    from outbound_transfer import metrics

    metrics.WAITS.emit(_in_flight[conn_id], conn_id=conn_id, triggerer=socket.gethostname())


async def _settings(conn_id: str) -> Settings:
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

    return await OutboundTransferHook(conn_id).get_async_settings()


def _serialized(trigger: BaseEventTrigger, *names: str) -> tuple[str, dict[str, Any]]:
    kind = type(trigger)
    return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(trigger, name) for name in names}


def _push(ti: Any, transfer: dict[str, Any]) -> None:
    # An event's own xcoms would reach downstream tasks encoded twice (Airflow 3.3).
    from airflow.sdk.execution_time.xcom import XCom

    XCom.set("return_value", transfer, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
