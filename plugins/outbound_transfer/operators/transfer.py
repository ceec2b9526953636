"""A delivery in one task: create a draft, attach files, send it, and wait for its pickup (service-api.md, R2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from outbound_transfer.airflow_compat.rendering import is_unmapped
from outbound_transfer.client.errors import InvalidDelivery, TaskNotRunning
from outbound_transfer.links.transfer import push_link
from outbound_transfer.operators.arguments import (
    SLOT_TIMEOUT_CHECK,
    Check,
    check_all,
    check_delivery_key,
    check_literals,
    to_seconds,
)
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE, OutboundTransferOperator
from outbound_transfer.operators.errors import DeferRequested, fails_without_retry
from outbound_transfer.operators.files import (
    FILES_CHECKS,
    FILES_FIELDS,
    NOTHING_MATCHES,
    file_finder,
    given_files,
    hide_files,
    prepare_files,
    sources_of,
    specs_of,
)
from outbound_transfer.operators.new_transfer import (
    TRANSFER_CHECKS,
    TRANSFER_FIELDS,
    given_answer,
    given_recipients,
    hide_new_transfer,
    load_recipients,
    new_transfer,
    no_skip_after_send,
    prepare_new_transfer,
    secrets_of,
)
from outbound_transfer.operators.sending import (
    RehearsalFinished,
    announce,
    delivery_summary,
    finishing_rehearsal,
    to_delivery_result,
)
from outbound_transfer.operators.wait import OUTCOME_CHECKS, Pickup

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.delivery import Delivery, Order
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.find import ParsedSpec
    from outbound_transfer.files.sources import Source
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.operators.arguments import Files, Recipients


#: Arguments that have no effect without a wait, and their defaults.
_OF_THE_WAIT: Final = {
    "poke_interval": timedelta(minutes=1),
    "timeout": None,
    "on_expired": "fail",
    "on_canceled": "fail",
    "accept_partial": False,
}


def _check_send(send: Any, wait: Any) -> None:
    if not isinstance(send, bool):
        raise InvalidDelivery(f"send must be True or False, not {send!r:.100}")
    if wait and not send:
        raise InvalidDelivery(
            "wait=True needs send=True: a draft is not picked up. Put a TransferSensor after the send"
        )


DELIVERY_CHECKS: Final = (
    Check(("send", "wait"), _check_send),
    SLOT_TIMEOUT_CHECK,
    Check(("delivery_key",), lambda key: key is None or check_delivery_key(key)),
    Check(("poke_interval",), lambda interval: to_seconds("poke_interval", interval)),
    Check(("timeout",), lambda timeout: timeout is None or to_seconds("timeout", timeout)),
    *OUTCOME_CHECKS,
)


class DeliverFilesOperator(OutboundTransferOperator):
    """Create, attach and send in one task, and optionally wait until the transfer is picked up.

    A retry deletes the draft of the attempt before and makes a new one; a clear after the send returns the same
    transfer. Pushes the XCom ``transfer_id`` as soon as the draft exists.

    :param files: see :class:`.AttachFilesOperator`.
    :param subject: see :class:`.CreateTransferOperator`.
    :param recipients: see :class:`.CreateTransferOperator`.
    :param message: see :class:`.CreateTransferOperator`.
    :param security: see :class:`.CreateTransferOperator`.
    :param security_question: see :class:`.CreateTransferOperator`.
    :param security_answer: see :class:`.CreateTransferOperator`.
    :param archive: see :class:`.AttachFilesOperator`.
    :param checksums: see :class:`.AttachFilesOperator`.
    :param max_parallel_uploads: see :class:`.AttachFilesOperator`.
    :param on_empty: see :class:`.AttachFilesOperator`; the task is skipped before it calls the service.
    :param delivery_key: identifies the delivery, as ``job_id`` does BigQuery's jobs: under one key, one transfer of the
        account is sent, whatever Dag run, task or map index delivers it. A later task gets that transfer, or fails
        if its input differs. By default a delivery is that of one task in one run.
    :param send: False fills the draft and leaves it to a :class:`.SendTransferOperator`, with an
        :class:`.ApproveTransferOperator` before it if a person is to decide. A clear makes a new draft, unless this one
        was sent.
    :param slot_timeout: see :class:`.SendTransferOperator`.
    :param wait: wait until every recipient picked the transfer up, or it expired or was canceled.
    :param poke_interval: time between two polls of the transfer.
    :param timeout: how long to wait at most; by default until it finishes.
    :param on_expired: the task's outcome if the transfer expired before all recipients picked it up: ``fail``,
        ``succeed`` or ``skip``.
    :param on_canceled: the same for a transfer that was canceled in the web application.
    :param accept_partial: succeed as soon as one recipient picked the transfer up.
    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: free the worker slot during waits: for pickup, and for a slot of the account.
    :return: the transfer as last read, or the draft, as :class:`.SendTransferOperator` returns it.
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        *TRANSFER_FIELDS,
        *FILES_FIELDS,
        "slot_timeout",
        "delivery_key",
        "on_expired",
        "on_canceled",
        "poke_interval",
        "timeout",
    )
    checks: tuple[Check, ...] = (*TRANSFER_CHECKS, *FILES_CHECKS, *DELIVERY_CHECKS)

    sends = True

    #: Arguments that may be left out, or are replaced, when the task runs.
    found_later: Set[str] = frozenset()
    #: Paths and URIs of the files that this try has found.
    located: Sequence[str] = ()

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
        **kwargs: Any,
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, deferrable=deferrable, **kwargs)
        self.subject: Any = subject
        self.recipients = given_recipients(self, recipients)
        self.message = message
        self.security = security
        self.security_question = security_question
        self.security_answer = given_answer(self, security_answer)
        self.files = given_files(self, files)
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
        check_literals(self, self.checks, self.found_later)
        self._ignored = [] if wait else self._ignored_arguments(kwargs.get("default_args") or {})
        if not is_unmapped(self):
            self._refuse_ignored()

    def _ignored_arguments(self, default_args: Mapping[str, Any]) -> list[str]:
        """Return the arguments of the wait that are given without one.

        :param default_args: of the Dag, which may be meant for its sensors.
        """
        given = {name: getattr(self, name) for name in _OF_THE_WAIT}
        return [name for name, value in given.items() if value not in (_OF_THE_WAIT[name], default_args.get(name))]

    def _refuse_ignored(self) -> None:
        """:raises InvalidDelivery: arguments are given that have no effect."""
        if self._ignored:
            raise InvalidDelivery(
                f"{', '.join(self._ignored)} needs wait=True: without it, the task ends with the send"
            )

    def before_rendering(self, fields: Sequence[str]) -> None:
        prepare_new_transfer(self)
        if "files" in fields:
            prepare_files(self)
        self._given = {name: getattr(self, name) for name in fields}

    def hide_secrets(self) -> None:
        hide_new_transfer(self, self._given)
        hide_files(self, self._given)

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        return super().hook(secrets=secrets_of(self), **client_options)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        from outbound_transfer.files.content import Spool

        client = hook.get_conn()
        if self.send and not self._was_deferred:
            announce(client, context, self.log)
        self._delivery = delivery = self.begin(client, context)
        if delivery.memory.transfer_id:  # Airflow has removed the XComs of the try that made it
            self._publish(context, delivery)
        try:
            with (
                Spool() as spool,
                delivery.closing(self._is_final, self._open_client),
                finishing_rehearsal(client, context, delivery.row),
                no_skip_after_send(delivery),
            ):
                transfer = self.deliver(delivery, context, spool)
        finally:
            self.report.transfer = delivery.transfer
        if transfer.is_draft:
            self.log.info("Draft %s is complete. Nothing is sent: another task sends or discards it", transfer.id)
            return to_delivery_result(transfer, delivery.memory)
        self.report.transfer_id, self.report.is_sent = transfer.id, True
        self.log.info("%s", delivery_summary(transfer, context["ti"], client.settings))
        if self.wait:
            pickup = Pickup(self, transfer.id, context)
            try:
                transfer = pickup.run(hook, transfer)
            finally:
                self.report.transfer = pickup.transfer
        return to_delivery_result(transfer, delivery.memory)

    def begin(self, client: Client, context: Context) -> Delivery:
        """Return the delivery, begun by this try."""
        from outbound_transfer.delivery.keys import begin_delivery
        from outbound_transfer.delivery.place import open_rows

        delivery = begin_delivery(client, open_rows(), self.attempt(context), self.delivery_key)
        self.report.row = delivery.row
        return delivery

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
        """Determine what to deliver, where the arguments do not say it; the delivery has begun."""

    def order(self, delivery: Delivery, spool: Spool) -> Order:
        """Return what to deliver."""
        from outbound_transfer.delivery.delivery import Order

        self._refuse_ignored()
        self.load_recipients(delivery)
        check_all(self, self.checks)
        new, find = new_transfer(self), file_finder(self, spool)

        def find_sources(gone: list[OutboundTransferError] | None = None) -> Sequence[Source]:
            sources = find(gone)
            if gone is None:
                self.check_sources(sources)
            return sources

        return Order(new, find_sources, sends=self.send)

    def load_recipients(self, delivery: Delivery) -> None:
        """Determine to whom to deliver, where the arguments do not say it."""
        load_recipients(self, delivery)

    def file_specs(self) -> list[ParsedSpec]:
        """Return what is to be attached; nothing is read or produced."""
        return specs_of(self)

    def find_sources(
        self, specs: Sequence[ParsedSpec], spool: Spool, gone: list[OutboundTransferError] | None
    ) -> list[Source]:
        """Find the files; see :func:`.sources_of`.

        :raises AirflowSkipException: there is none, and that may be.
        """
        sources = sources_of(self, specs, spool, gone)
        if not sources and gone is None:
            raise AirflowSkipException(f"{NOTHING_MATCHES}: nothing is delivered")
        return sources

    def check_sources(self, sources: Sequence[Source]) -> None:
        """Check the files before anything is created; here, any will do."""

    def _is_final(self, error: BaseException) -> bool:
        """Return whether no later try of the task sends its draft, so that it is to be removed."""
        if isinstance(error, RehearsalFinished):
            return True
        # Another try may have begun: whoever is next discards the draft of one that was given up.
        if isinstance(error, DeferRequested | AirflowRescheduleException | TaskNotRunning):
            return False
        if isinstance(error, AirflowSkipException):
            return True
        has_retries = self._delivery is not None and self._delivery.attempt.has_retries
        return not has_retries or isinstance(error, AirflowFailException) or fails_without_retry(error)

    def _open_client(self) -> Client:
        """Return a client whose calls give up soon and do not defer."""
        from outbound_transfer.client.retry import RetryPolicy

        return self.hook(policy=RetryPolicy(max_attempts=3, timeout=300.0)).get_conn()

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Finish with the trigger's event, if it is about the transfer that was sent."""
        from outbound_transfer.delivery.attempt import TaskTry
        from outbound_transfer.delivery.check import is_of
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import read_memory

        memory = read_memory(open_rows(), TaskTry.of(context).task)
        pickup = Pickup(self, memory.transfer_id, context)
        self.report.transfer_id, self.report.is_sent = memory.transfer_id, True
        try:
            # A row that was forgotten meanwhile knows no transfer.
            transfer = pickup.finish(event, lambda seen: seen.id != memory.transfer_id or is_of(memory, seen))
        finally:
            self.report.transfer = pickup.transfer
        return to_delivery_result(transfer, memory)
