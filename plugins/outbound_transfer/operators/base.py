"""Base class of the provider's operators: connection, deferral of long retry delays, errors that fail at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from outbound_transfer.airflow_compat.mapping import fields_of_the_dag_file, is_unmapped
from outbound_transfer.airflow_compat.names import (
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
    conf,
    timezone,
)
from outbound_transfer.client.errors import DeferRequested
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.observability import metrics
from outbound_transfer.tasks.arguments import is_fixed
from outbound_transfer.tasks.errors import fail_without_retry

if TYPE_CHECKING:
    from airflow.providers.standard.triggers.temporal import DateTimeTrigger
    from airflow.sdk import Context

    from outbound_transfer.client.errors import CallError
    from outbound_transfer.client.retry import RetryPolicy
    from outbound_transfer.delivery.row import Row


#: The task goes on later, or was skipped: no errors.
_CONTROL_FLOW: Final = (DeferRequested, TaskDeferred, AirflowSkipException, AirflowRescheduleException)


def deferral_trigger(seconds: float) -> DateTimeTrigger:
    """Return a trigger that fires after ``seconds``."""
    from airflow.providers.standard.triggers.temporal import DateTimeTrigger

    return DateTimeTrigger(moment=timezone.utcnow() + timedelta(seconds=seconds))


class OutboundTransferOperator(BaseOperator):
    """An operator that talks to the service in :meth:`run_task`, which may run again from its beginning.

    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: free the worker slot during waits: for pickup, for a slot, between two pages of the feed.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id",)

    #: Whether a try that fails has failed to deliver.
    owns_delivery = True
    _was_deferred = False
    #: Seconds that this try has waited in deferred mode, and the claim of its delivery's row that it has made.
    _waited = 0.0
    _claim = 0
    #: The row of the delivery that this try works on.
    _row: Row | None = None
    #: Whether this try has sent the transfer, or found that it was sent: what fails from then on is no delivery.
    _is_delivered = False

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

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: Any, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        if parent is self:  # what a task returned is no template
            template_fields = fields_of_the_dag_file(self, template_fields, context)
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)

    def is_known(self, *arguments: str) -> bool:
        """Return whether these arguments can be checked when the DAG is parsed, as they will be when the task runs."""
        return not is_unmapped(self) and all(is_fixed(getattr(self, name)) for name in arguments)

    @abstractmethod
    def run_task(self, hook: OutboundTransferHook, context: Context) -> Any:
        """Do the task's work: in each process of a try from the beginning."""

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        """Return the hook of the connection.

        :param client_options: arguments of :class:`outbound_transfer.client.Client`.
        """
        return OutboundTransferHook(self.outbound_transfer_conn_id, **client_options)

    def call_retry_policy(self) -> RetryPolicy:
        """Return how often and how long one call is retried."""
        from outbound_transfer.client.retry import RetryPolicy

        return RetryPolicy()

    def execute(self, context: Context) -> Any:
        return self._run(context)

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

    def _run(self, context: Context) -> Any:
        try:
            with (
                fail_without_retry(),
                self._reporting(context),
                self.hook(policy=self.call_retry_policy(), on_retry=self._on_retry) as hook,
            ):
                return self.run_task(hook, context)
        except DeferRequested as request:
            trigger = deferral_trigger(request.seconds)
            self.defer(trigger=trigger, method_name="resume", kwargs=self._resume_arguments(request))

    @contextmanager
    def _reporting(self, context: Context) -> Iterator[None]:
        """Count a failed attempt, and store its error for the page."""
        from outbound_transfer.delivery.shown import emit_in_doubt, show_error

        conn_id = self.outbound_transfer_conn_id
        try:
            yield
        except BaseException as error:
            if self.owns_delivery and not isinstance(error, _CONTROL_FLOW):
                if not self._is_delivered:
                    metrics.DELIVERIES.emit(outcome=self._failed_as(context), conn_id=conn_id)
                if self._row:
                    show_error(self._row.rows, self._row.key, error)
            raise
        finally:
            emit_in_doubt(conn_id)

    def _failed_as(self, context: Context) -> str:  # noqa: ARG002  # others know more
        """Return the outcome under which a try that failed is counted."""
        return "failed"

    def _resume_arguments(self, request: DeferRequested) -> dict[str, Any]:
        """Return the arguments of :meth:`resume` after a deferral; JSON can hold them."""
        claim = self._row.claim_number if self._row else 0
        return {"waited": self._waited + request.seconds, "claim": claim}

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        """Log a wait; one for a slot frees the worker."""
        from outbound_transfer.client.retry import log_retry

        log_retry(operation, error, seconds)
        if self.deferrable and error.waits_for_slot:
            raise DeferRequested(seconds)
