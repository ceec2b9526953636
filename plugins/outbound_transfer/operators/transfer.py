"""A delivery in one task: create a draft, attach files, send it, and wait for its pickup (service-api.md, R2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Unpack

from outbound_transfer.airflow_compat import names
from outbound_transfer.client.errors import TaskNotRunning
from outbound_transfer.delivery.attempt import StaleTry, TaskTry
from outbound_transfer.files.content import Spool
from outbound_transfer.links.transfer import push_link
from outbound_transfer.operators import base, results
from outbound_transfer.operators.arguments import DELIVERY_CHECKS, FILES_CHECKS, TRANSFER_CHECKS, Check
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE, OutboundTransferOperator
from outbound_transfer.operators.errors import DeferRequested, fails_without_retry
from outbound_transfer.operators.wait import Pickup

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.attempt import Attempt
    from outbound_transfer.delivery.delivery import Delivery, Order
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.operators.arguments import Files, Recipients
    from outbound_transfer.operators.task_arguments import TaskArguments

#: Arguments that have no effect without a wait.
_OF_THE_WAIT: Final = ("poke_interval", "timeout", "on_expired", "on_canceled", "accept_partial")


class DeliverFilesOperator(OutboundTransferOperator):
    """Create, fill and send a transfer in one task, and optionally wait until it is picked up.

    A retry deletes the previous attempt's draft and creates a new one; a clear after the send returns the same
    transfer. Pushes the XCom ``transfer_id`` as soon as the draft exists. For the other
    arguments, see :class:`.CreateTransferOperator`; for those about files, see :class:`.AttachFilesOperator`.

    :param files: see :class:`.AttachFilesOperator`.
    :param subject: see :class:`.CreateTransferOperator`.
    :param recipients: see :class:`.CreateTransferOperator`.
    :param delivery_key: identifies the delivery, as ``job_id`` identifies a BigQuery job: for each key, the account
        sends one transfer, whichever Dag run, task or map index delivers it. A later task gets that transfer, or fails
        if its input differs. By default, each task has one delivery in each run.
    :param send: False fills the draft, and a :class:`.SendTransferOperator` sends it, perhaps after an
        :class:`.ApproveTransferOperator`. A clear creates a new draft, unless this one was sent.
    :param slot_timeout: see :class:`.SendTransferOperator`.
    :param wait: wait until every recipient has picked up the transfer, or it expires or is canceled.
    :param poke_interval: time between two polls of the transfer.
    :param timeout: maximum time to wait; by default, until the transfer finishes.
    :param on_expired: outcome if the transfer expires before all have picked it up: ``fail``, ``succeed`` or ``skip``.
    :param on_canceled: outcome if the transfer is canceled in the web application: ``fail``, ``succeed`` or ``skip``.
    :param accept_partial: succeed as soon as one recipient has picked up the transfer.
    :param deferrable: free the worker slot while waiting for pickup or for one of the account's slots.
    :return: the transfer as last read, or the draft, as :class:`.SendTransferOperator` returns it.
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        *base.TRANSFER_FIELDS,
        *base.FILES_FIELDS,
        "slot_timeout",
        "delivery_key",
        "on_expired",
        "on_canceled",
        "poke_interval",
        "timeout",
    )
    checks: tuple[Check, ...] = (*TRANSFER_CHECKS, *FILES_CHECKS, *DELIVERY_CHECKS)

    sends = skips_without_files = True
    find_sources = base.find_sources

    def __init__(
        self,
        *,
        files: Files,
        subject: str,
        recipients: Recipients,
        message: str | None = None,
        security: str | None = None,
        security_question: str | None = None,
        security_answer: str | None = None,
        archive: str | None = None,
        checksums: str | None = None,
        on_empty: str = "fail",
        max_parallel_uploads: int = 4,
        delivery_key: str | None = None,
        send: bool = True,
        slot_timeout: timedelta = timedelta(hours=1),
        wait: bool = False,
        poke_interval: timedelta = timedelta(minutes=1),
        timeout: timedelta | None = None,
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, deferrable=deferrable, **kwargs)
        self.subject: Any = subject
        self.recipients = recipients
        self.message = message
        self.security = security
        self.security_question = security_question
        self.security_answer = security_answer
        self.files: Any = files
        self.archive = archive
        self.checksums = checksums
        self.on_empty = on_empty
        self.max_parallel_uploads = max_parallel_uploads
        self.delivery_key = delivery_key
        self.send = send
        self.slot_timeout = slot_timeout
        self.wait = wait
        self.poke_interval = poke_interval
        self.timeout = timeout
        self.on_expired = on_expired
        self.on_canceled = on_canceled
        self.accept_partial = accept_partial
        own = signature(DeliverFilesOperator.__init__).parameters
        dags = kwargs.get("default_args") or {}  # which may be meant for the Dag's sensors
        given = {name: getattr(self, name) for name in _OF_THE_WAIT if not wait}
        self._ignored = [name for name, value in given.items() if value not in (own[name].default, dags.get(name))]
        self.check_when_parsed()

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        client = hook.get_conn()
        if self.send:
            results.announce(self, client, context)
        self.report.reader = delivery = self.begin(client, context, self.delivery_key)
        if delivery.memory.transfer_id:  # Airflow has removed the XComs of the attempt that created it
            self._publish(context, delivery)
        attempt = delivery.attempt
        with (
            Spool() as spool,
            delivery.closing(lambda error: _is_final(error, attempt), self._open_client),
            results.finishing_rehearsal(delivery, context),
            base.no_skip_after_send(delivery),
        ):
            transfer = self.deliver(delivery, context, spool)
        if transfer.is_draft:
            self.log.info("Draft %s is complete. Nothing is sent: another task sends or discards it", transfer.id)
            return results.to_delivery_result(transfer, delivery.memory)
        self.report.transfer_id, self.report.is_sent = transfer.id, True
        if delivery.has_sent:
            self.log.info("%s", results.delivery_summary(transfer, client, context))
        if self.wait:
            self.report.reader = pickup = Pickup(self, transfer.id, context)
            transfer = pickup.run(hook, transfer)
        return results.to_delivery_result(transfer, delivery.memory)

    def _publish(self, context: Context, delivery: Delivery) -> None:
        transfer_id = delivery.memory.transfer_id
        context["ti"].xcom_push("transfer_id", transfer_id)
        push_link(context, delivery.client.settings, transfer_id)

    def deliver(self, delivery: Delivery, context: Context, spool: Spool) -> Transfer:
        """Determine what to deliver, and deliver it."""
        self.prepare(delivery, context)
        order = self.order(delivery, spool)
        return delivery.deliver(order, int(self.max_parallel_uploads), lambda: self._publish(context, delivery))

    def prepare(self, delivery: Delivery, context: Context) -> None:
        """Determine what to deliver if the arguments do not say so; called once the delivery has begun."""

    def order(self, delivery: Delivery, spool: Spool) -> Order:
        """Return what to deliver."""
        from outbound_transfer.delivery.delivery import Order

        return Order(base.new_transfer(self, delivery), partial(base.find_files, self, spool), sends=self.send)

    def _open_client(self) -> Client:
        """Return a client whose calls give up soon and do not defer."""
        from outbound_transfer.client.client import RetryPolicy

        return self.hook(policy=RetryPolicy(max_attempts=3, timeout=300.0)).get_conn()

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Finish with the trigger's event, if it is about the transfer that was sent."""
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import is_of, read_memory

        memory = read_memory(open_rows(), TaskTry.of(context).task)
        self.report.reader = pickup = Pickup(self, memory.transfer_id, context)
        self.report.transfer_id, self.report.is_sent = memory.transfer_id, True
        # A row that was forgotten in the meantime does not have a transfer.
        transfer = pickup.finish(event, lambda seen: seen.id != memory.transfer_id or is_of(memory, seen))
        return results.to_delivery_result(transfer, memory)


def delivery_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :class:`DeliverFilesOperator` among the ``locals()`` of a constructor that lists more."""
    own = signature(DeliverFilesOperator.__init__).parameters.keys() - {"self", "kwargs"}
    return {name: value for name, value in given.items() if name in own}


def _is_final(error: BaseException, attempt: Attempt) -> bool:
    """Return whether no later attempt of the task will send the draft, so that it must be deleted."""
    # Another attempt may have begun: the next attempt discards the draft of an abandoned one.
    if isinstance(error, DeferRequested | names.AirflowRescheduleException | TaskNotRunning | StaleTry):
        return False
    is_over = isinstance(error, names.AirflowSkipException | names.AirflowFailException) or fails_without_retry(error)
    return is_over or not attempt.has_retries
