"""What all operators of this provider share: the connection, long waits without a slot, errors that end at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, conf, timezone

from outbound_transfer.failures import failing_at_once
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

if TYPE_CHECKING:
    from airflow.providers.standard.triggers.temporal import DateTimeTrigger
    from airflow.sdk import Context

    from outbound_transfer.client.retry import RetryPolicy, Wait
    from outbound_transfer.ledger.journal import Journal

#: A wait longer than this many seconds frees the worker slot.
LONGEST_HELD_WAIT: Final = 5.0


class LongWait(Exception):
    """A wait that should not hold a worker slot: no error, it carries the wait to where the task can defer.

    :ivar seconds: how long it takes.
    :ivar waited: seconds that the awaited call, by its operation, will have spent in waits when it ends.
    :ivar unclear: the call that failed before the wait may have taken effect.
    """

    def __init__(self, seconds: float, waited: dict[str, float] | None = None, *, unclear: bool = False) -> None:
        super().__init__(f"waiting {seconds:.0f} s")
        self.seconds, self.waited, self.unclear = seconds, waited or {}, unclear

    def trigger(self) -> DateTimeTrigger:
        """Fires when it is over."""
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        return DateTimeTrigger(moment=timezone.utcnow() + timedelta(seconds=self.seconds))


class OutboundTransferOperator(BaseOperator):
    """An operator that talks to the service in :meth:`work`, which may be run again from its beginning.

    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: whether waits over a few seconds (rate limits, backoff) free the worker slot.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id",)

    #: Whether the ledger takes the task for one that makes deliveries, or for one that only sees them.
    delivers = True
    journal: Journal
    _was_deferred = False

    def __init__(
        self,
        *,
        outbound_transfer_conn_id: str = OutboundTransferHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.deferrable = deferrable

    @abstractmethod
    def work(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> Any:
        """Do the task's work.

        :param resumed: this try got here before, and nothing was unclear when it deferred for the service's limits.
        """

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        """The connection; ``client_options`` as of :class:`outbound_transfer.client.Client`."""
        return OutboundTransferHook(self.outbound_transfer_conn_id, **client_options)

    def retry_policy_of_calls(self) -> RetryPolicy:
        """Bounds of the repeats of one call."""
        from outbound_transfer.client.retry import RetryPolicy

        return RetryPolicy()

    def execute(self, context: Context) -> Any:
        return self._work(context, waited={}, resumed=False)

    def resume(  # Airflow passes the event
        self,
        context: Context,
        event: Any = None,  # noqa: ARG002
        *,
        waited: dict[str, float] | None = None,
        unclear: bool = True,
    ) -> Any:
        """Go on after a wait; ``waited`` and ``unclear`` as of :class:`LongWait`.

        They have defaults because ``dag.test()`` of Airflow 3.3 brings back the event alone.
        """
        self._was_deferred = True
        return self._work(context, waited=waited or {}, resumed=not unclear)

    def _work(self, context: Context, *, waited: dict[str, float], resumed: bool) -> Any:
        from outbound_transfer.ledger.recording import recording

        options = {"policy": self.retry_policy_of_calls(), "on_wait": self._on_wait, "waited": waited}
        try:
            with failing_at_once(), self.hook(**options) as hook, recording(self, context, hook) as self.journal:
                return self.work(hook, context, resumed=resumed)
        except LongWait as long:
            self.defer(
                trigger=long.trigger(),
                method_name="resume",
                kwargs={"waited": long.waited, "unclear": long.unclear},
            )

    def _on_wait(self, wait: Wait) -> None:
        from outbound_transfer.client.retry import log_wait

        log_wait(wait)
        if self.deferrable and wait.seconds > LONGEST_HELD_WAIT and wait.is_asked_for:
            waited = {wait.call.operation.value: wait.waited + wait.seconds}
            raise LongWait(wait.seconds, waited, unclear=getattr(wait.error, "unclear", True))
