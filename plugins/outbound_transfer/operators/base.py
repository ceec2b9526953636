"""Base class of the provider's operators: connection, deferral of long waits, errors that fail at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from outbound_transfer.airflow_compat.names import conf, timezone
from outbound_transfer.airflow_compat.rendering import hides_secrets
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links.transfer import TransferLink
from outbound_transfer.operators.arguments import Check, to_seconds
from outbound_transfer.operators.errors import DeferRequested, fail_without_retry
from outbound_transfer.operators.report import Report

if TYPE_CHECKING:
    from airflow.providers.standard.triggers.temporal import DateTimeTrigger
    from airflow.sdk import BaseOperatorLink, Context

    from outbound_transfer.client.errors import CallError
    from outbound_transfer.client.retry import RetryPolicy
    from outbound_transfer.delivery.attempt import Attempt

DEFAULT_CONN_ID: Final = OutboundTransferHook.default_conn_name

DEFAULT_DEFERRABLE: Final[bool] = conf.getboolean("operators", "default_deferrable", fallback=False)


def deferral_trigger(seconds: float) -> DateTimeTrigger:
    """Return a trigger that fires after ``seconds``."""
    from airflow.providers.standard.triggers.temporal import DateTimeTrigger

    return DateTimeTrigger(moment=timezone.utcnow() + timedelta(seconds=seconds))


@hides_secrets
class OutboundTransferOperator(BaseOperator):
    """An operator that talks to the service in :meth:`run_task`, which may run again from its beginning.

    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: free the worker slot during waits: for pickup, for a slot, between two pages of the feed.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id",)
    operator_extra_links: Collection[BaseOperatorLink] = (TransferLink(),)

    #: What the arguments must be; run by the subclasses when the Dag is parsed, and by their tasks.
    checks: tuple[Check, ...] = ()
    #: Whether an attempt that fails has failed to deliver.
    owns_delivery = True
    #: Whether the task sends: its errors name what it has sent, or may have.
    sends = False
    #: How long to wait for a slot of the account; None if the task sends nothing.
    slot_timeout: Any = None

    #: The arguments that were rendered, as they were before.
    _given: Mapping[str, Any] = {}
    #: What this process does, for its errors.
    report: Report
    #: Seconds that this attempt has waited in deferred mode, and the claim of its delivery's row that it has made.
    _was_deferred = False
    _waited = 0.0
    _claim = 0

    def __init__(
        self,
        *,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.deferrable = deferrable

    def before_rendering(self, fields: Sequence[str]) -> None:
        """Prepare arguments to be rendered, in each attempt.

        :param fields: those that are rendered: no other task has returned them.
        """

    def hide_secrets(self) -> None:
        """Replace what nobody may see in the rendered fields, before Airflow stores them."""

    @abstractmethod
    def run_task(self, hook: OutboundTransferHook, context: Context) -> Any:
        """Do the task's work: in each process of an attempt from the beginning."""

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        """Return the hook of the connection.

        :param client_options: arguments of :class:`.Client`.
        """
        return OutboundTransferHook(self.outbound_transfer_conn_id, **client_options)

    def attempt(self, context: Context) -> Attempt:
        """Return what Airflow says of this attempt."""
        from outbound_transfer.delivery.attempt import Attempt

        return Attempt(context, self.outbound_transfer_conn_id, self._claim)

    def execute(self, context: Context) -> Any:
        with self._reporting(context):
            return self._run(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        # A trigger that failed, in a wait after the send perhaps, is no delivery that failed.
        with self._reporting(context, counts=next_method != "__fail__"):
            return super().resume_execution(next_method, next_kwargs, context)

    def resume(  # Airflow passes the event
        self,
        context: Context,
        event: Any = None,  # noqa: ARG002
        *,
        waited: float = 0.0,
        claim: int = 0,
    ) -> Any:
        """Resume after a deferred wait.

        :param waited: seconds that the task has waited so in all. It has a default because ``dag.test()`` of Airflow
            3.3 passes the event only.
        :param claim: of the delivery's row, as the process that was deferred has made it; 0 if it has made none.
        """
        self._was_deferred, self._waited, self._claim = True, waited, claim
        return self._run(context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the files, the transfer and its status; OpenLineage's provider calls it, if installed."""
        from outbound_transfer.operators.openlineage import delivery_lineage

        return delivery_lineage(self, task_instance)

    @contextmanager
    def _reporting(self, context: Context, *, counts: bool = True) -> Iterator[None]:
        self.report = Report(context, self.outbound_transfer_conn_id, self.log, sends=self.sends, counts=counts)
        if not self.owns_delivery:
            yield
            return
        with self.report.of_errors():
            yield

    def _run(self, context: Context) -> Any:
        try:
            with (
                fail_without_retry(),
                self.hook(policy=self._retry_policy(), on_retry=self._on_retry) as hook,
            ):
                return self.run_task(hook, context)
        except DeferRequested as request:
            trigger = deferral_trigger(request.seconds)
            self.defer(trigger=trigger, method_name="resume", kwargs=self._resume_arguments(request))

    def _retry_policy(self) -> RetryPolicy:
        from outbound_transfer.client.retry import RetryPolicy

        if self.slot_timeout is None:
            return RetryPolicy()
        return RetryPolicy(slot_timeout=max(to_seconds("slot_timeout", self.slot_timeout) - self._waited, 0.0))

    def _resume_arguments(self, request: DeferRequested) -> dict[str, Any]:
        """Return the arguments of :meth:`resume` after a deferral; JSON can hold them."""
        claim = self.report.row.claim_number if self.report.row else 0
        return {"waited": self._waited + request.seconds, "claim": claim}

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        """Log a wait; one for a slot frees the worker."""
        from outbound_transfer.client.retry import log_retry

        log_retry(operation, error, seconds)
        if self.deferrable and error.waits_for_slot:
            raise DeferRequested(seconds)
