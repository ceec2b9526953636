"""Deliver files: create a draft, attach each file, send it (service-api.md, R2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.client.errors import DeferRequested, InvalidDelivery, TaskNotRunning
from outbound_transfer.client.ids import check_delivery_key, resolve_transfer_id
from outbound_transfer.client.models import to_builtins
from outbound_transfer.client.outcomes import OTHER_TRANSFER, describe
from outbound_transfer.files.progress import delivery_summary
from outbound_transfer.links.transfer import push_link
from outbound_transfer.observability import metrics
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.operators.files import FILES_FIELDS, NOTHING_MATCHES, FilesOperator
from outbound_transfer.operators.new_transfer import NewTransferOperator, no_skip_after_send
from outbound_transfer.operators.transfer_task import (
    RehearsalFinished,
    SendingOperator,
    TransferTaskOperator,
    to_delivery_result,
)
from outbound_transfer.tasks.arguments import to_whole_number
from outbound_transfer.tasks.errors import fails_without_retry
from outbound_transfer.tasks.waiting import DeferrableWaitMixin, to_seconds, transfer_from_event

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.delivery.order import Order
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.sources import ParsedSpec, Source
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook


#: Arguments of the wait that have no effect without one, and their defaults. DAGs have the others for their sensors.
_OF_THE_WAIT: Final = {
    "on_expired": "fail",
    "on_canceled": "fail",
    "accept_partial": False,
}


class CreateTransferOperator(NewTransferOperator):
    """Create a draft: nothing is delivered or billed until it is sent, and it is removed after 30 days.

    A retry or a clear deletes the draft of the attempt before, or returns the transfer if it was sent: this task alone
    decides whether there may be another. See service-api.md, R22 to R25.

    :param subject: not empty.
    :param recipients: 1 to 250 addresses, or mappings with ``email`` and optionally ``name`` and ``phone``. A template
        may render to JSON, or to the text of a Python list or mapping. Or the rows of a query:
        :class:`~outbound_transfer.operators.recipients.RecipientsFromSql`. Duplicate addresses are rejected.
    :param message: up to 2,000 characters.
    :param security: one of none, email, email_code, question, sms, login; by default, and for None, the account's
        option. An empty text is refused: what a template without a value gives is no choice of that option.
    :param security_question: only with ``security="question"``.
    :param security_answer: only with ``security="question"``; masked everywhere.
    :return: the transfer's id.
    """

    def run_task(self, hook: OutboundTransferHook, context: Context) -> str:
        from outbound_transfer.delivery.decision import Act, Phase
        from outbound_transfer.delivery.keys import begin_delivery
        from outbound_transfer.delivery.order import Order
        from outbound_transfer.delivery.place import open_rows

        client = hook.get_conn()
        delivery = begin_delivery(client, open_rows(), self.attempt(context), log=hook.log)
        self._row = delivery.row
        with no_skip_after_send(delivery):
            self.load_recipients(delivery)
        if delivery.prepare(Order(self.new_transfer())) is Act.CREATE:
            delivery.row.save(phase=Phase.HANDED_ON)
        push_link(context, client.settings, delivery.memory.transfer_id)
        return delivery.memory.transfer_id


class AttachFilesOperator(FilesOperator):
    """Attach files to a draft. A retry attaches the missing ones (service-api.md, R30 to R33).

    :param transfer_id: the draft.
    :param files: one or several paths, URIs (``s3://…``) or globs; a mapping ``{"path": …, "name": …}`` renames a file,
        and a mapping ``{"name": …, "content": …}`` is a file with that content: text (UTF-8), bytes, a binary file,
        or a callable that returns one of them and is called in each try.
    :param archive: name of a ZIP file, to deliver all files as this one.
    :param checksums: name of a further file, as ``SHA256SUMS``, with the SHA-256 of each for ``sha256sum --check``.
    :param on_empty: what to do about a pattern in ``files`` that matches nothing: ``fail``; or ``skip`` it, and the
        task if no file is left. A file without a pattern must be there.
    :param max_parallel_uploads: how many files to upload at once, from 1 on. The largest is uploaded first, alone: if
        it is over the account's limit (413 ``file_too_large``), nothing has been uploaded.
    :return: the service's file records: ``id``, ``name`` and ``size`` in bytes, in the order of ``files``.
    """

    template_fields: Sequence[str] = (*OutboundTransferOperator.template_fields, "transfer_id", *FILES_FIELDS)

    def __init__(self, *, transfer_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id
        self.check_known_transfer_id()

    def run_task(self, hook: OutboundTransferHook, context: Context) -> list[dict[str, Any]]:
        from outbound_transfer.delivery.draft import Filling
        from outbound_transfer.files.content import Spool

        with Spool() as spool:
            find = self.parse_files(spool)
            max_parallel_uploads = to_whole_number(self.max_parallel_uploads, "max_parallel_uploads")
            client, attempt, transfer_id = hook.get_conn(), self.attempt(context), resolve_transfer_id(self.transfer_id)
            row = self.row_of(client, context, transfer_id)
            filling = Filling(client, row, transfer_id, attempt.name, self.log, attempt.check_still_running)
            records = filling.attach(find, max_parallel_uploads)
        if not records:
            raise AirflowSkipException(NOTHING_MATCHES)
        result: list[dict[str, Any]] = to_builtins(records)
        return result


class SendTransferOperator(SendingOperator):
    """Send a draft once: bills the account, emails the recipients and starts the expiration (service-api.md, R36).

    Before each attempt, the draft is compared with what the tasks upstream have made and attached.

    :param transfer_id: the draft; a transfer that was sent already is returned as it is.
    :param slot_timeout: how long to wait for a slot while the account is at its limit of outstanding transfers (409
        ``transfer_limit_reached``), in seconds or as a timedelta.
    :return: the sent transfer as a mapping with the fields of service-api.md, R11, with ``not_picked_up``, ``security``
        and the ``sha256`` of each file.
    """

    template_fields: Sequence[str] = (*SendingOperator.template_fields, "transfer_id", "slot_timeout")

    def __init__(self, *, transfer_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id
        self.check_known_transfer_id()

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        from outbound_transfer.delivery.decision import Phase
        from outbound_transfer.delivery.row import require_draft
        from outbound_transfer.delivery.sending import Sending, delete_draft
        from outbound_transfer.delivery.shown import show

        self._sends = transfer_id = resolve_transfer_id(self.transfer_id)
        client, attempt = hook.get_conn(), self.attempt(context)
        row = self.row_of(client, context, transfer_id)
        if attempt.claim:
            row.resume(attempt.claim)
        else:
            row.claim(attempt.by, lambda memory: require_draft(memory, transfer_id, Phase.HANDED_ON, Phase.SENDING))
        self.announce(client, context)
        sending = Sending(client, row, attempt)
        try:
            with self.finishing_rehearsal(client, context, row):
                transfer = sending.send()
        except RehearsalFinished:
            delete_draft(client, row)
            raise
        if sending.has_sent:
            metrics.DELIVERIES.emit(outcome="sent", conn_id=self.outbound_transfer_conn_id)
        show(row.rows, client.settings.account, attempt.conn_id, transfer)
        self._is_delivered = True
        self.log.info("%s", delivery_summary(transfer, transfer.files, context["ti"], client.settings))
        return to_delivery_result(transfer, row.memory)


class DiscardTransferOperator(TransferTaskOperator):
    """Remove a draft that its run will not send, in a task that runs also if those before it failed.

    ``deliver >> discard.as_teardown()`` is such a task, and ``send >> discard.as_teardown(setups=create)`` for a draft
    that ``create`` made; the run's state stays that of the others. A sent transfer is left alone: what the service
    has removed as a draft was not sent, and cannot be any more.

    :param transfer_id: the draft; empty if its task created none, then nothing is done.
    :return: False if the transfer was sent; True if the draft was removed, or is not there any more.
    """

    template_fields: Sequence[str] = (*OutboundTransferOperator.template_fields, "transfer_id")

    owns_delivery = False

    def __init__(self, *, transfer_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id

    def run_task(self, hook: OutboundTransferHook, context: Context) -> bool:
        if self.transfer_id in (None, "", "None"):  # "None": the template of an XCom that was never pushed
            self.log.info("No draft was created; nothing to discard")
            return True
        from outbound_transfer.client.models import Discarded
        from outbound_transfer.delivery.decision import Phase
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import find_row, require_draft
        from outbound_transfer.delivery.sending import discard

        client, transfer_id = hook.get_conn(), resolve_transfer_id(self.transfer_id)
        push_link(context, client.settings, transfer_id)
        row = find_row(open_rows(), client.settings.account, transfer_id)
        if row and row.read()[1].phase is not Phase.EMPTY:
            row.claim(self.attempt(context).by, lambda memory: require_draft(memory, transfer_id, *Phase))
            outcome = discard(client, row)
        else:  # made outside of this Airflow, or forgotten
            outcome = client.discard_transfer(transfer_id)
        self.log.info("Transfer %s: %s", self.transfer_id, outcome.value)
        return outcome is not Discarded.SENT


class DeliverFilesOperator(SendingOperator, DeferrableWaitMixin, FilesOperator, NewTransferOperator):
    """Create, attach and send in one task, and optionally wait until the transfer is picked up.

    A retry deletes the draft of the attempt before and makes a new one; a clear after the send returns the same
    transfer. Pushes the XCom ``transfer_id`` as soon as the draft exists. See :class:`CreateTransferOperator` for the
    draft's arguments, and :class:`.DeferrableWaitMixin` for how the wait ends.

    :param files: see :class:`AttachFilesOperator`.
    :param archive: see :class:`AttachFilesOperator`.
    :param checksums: see :class:`AttachFilesOperator`.
    :param max_parallel_uploads: see :class:`AttachFilesOperator`.
    :param on_empty: see :class:`AttachFilesOperator`; the task is skipped before it calls the service.
    :param slot_timeout: see :class:`SendTransferOperator`.
    :param delivery_key: identifies the delivery, as ``job_id`` does BigQuery's jobs: under one key, one transfer of the
        account is sent, whatever DAG run, task or map index delivers it. Who comes later gets that transfer, or fails
        if its input differs. By default a delivery is that of one task in one run.
    :param wait: wait until every recipient picked the transfer up, or it expired or was canceled.
    :param poke_interval: seconds between two polls of the transfer.
    :param timeout: how long to wait at most, in seconds or as a timedelta; by default until it finishes.
    :return: the transfer as last read, as :class:`SendTransferOperator` returns it.
    """

    template_fields: Sequence[str] = (
        *NewTransferOperator.template_fields,
        *FILES_FIELDS,
        "slot_timeout",
        "delivery_key",
        "on_expired",
        "on_canceled",
        "poke_interval",
        "timeout",
    )

    def __init__(
        self,
        *,
        delivery_key: str | None = None,
        wait: bool = False,
        poke_interval: float | timedelta = 60,
        timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.delivery_key = delivery_key
        self.wait = wait
        self.poke_interval = poke_interval
        self.timeout = timeout
        self._check_known_arguments()

    def _check_known_arguments(self) -> None:
        """Let the DAG fail to parse if the task could only fail, or ignore what is asked for.

        :raises AirflowFailException, InvalidDelivery: naming the argument.
        """
        for name in ("poke_interval", "timeout"):
            if self.is_known(name) and getattr(self, name) is not None:
                to_seconds(getattr(self, name), name)
        if self.delivery_key is not None and self.is_known("delivery_key"):
            check_delivery_key(self.delivery_key)
        for name, default in _OF_THE_WAIT.items():
            if not self.wait and getattr(self, name) != default:
                raise InvalidDelivery(f"{name} needs wait=True: without it, the task ends with the send")

    def find_sources(
        self, specs: Sequence[ParsedSpec], spool: Spool, gone: list[OutboundTransferError] | None
    ) -> list[Source]:
        sources = super().find_sources(specs, spool, gone)
        if not sources and gone is None:
            raise AirflowSkipException(f"{NOTHING_MATCHES}: nothing is delivered")
        return sources

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        from outbound_transfer.files.content import Spool

        client = hook.get_conn()
        self.announce(client, context)
        self._delivery = delivery = self.begin(client, context)
        if delivery.memory.transfer_id:  # Airflow has removed the XComs of the try that made it
            self._publish(context, delivery)
        with (
            Spool() as spool,
            delivery.closing(self._is_final, self._open_client),
            self.finishing_rehearsal(client, context, delivery.row),
            no_skip_after_send(delivery),
        ):
            transfer = self.deliver(delivery, context, spool)
        self._sends, self._is_sent, self._is_delivered = transfer.id, True, True
        if delivery.has_sent:
            metrics.DELIVERIES.emit(outcome="sent", conn_id=self.outbound_transfer_conn_id)
        self.log.info("%s", delivery_summary(transfer, transfer.files, context["ti"], client.settings))
        if self.wait:
            transfer = self._wait_until_finished(hook, transfer, context)
        return to_delivery_result(transfer, delivery.memory)

    def begin(self, client: Client, context: Context) -> Delivery:
        """Return the delivery, begun by this try."""
        from outbound_transfer.delivery.keys import begin_delivery
        from outbound_transfer.delivery.place import open_rows

        delivery = begin_delivery(
            client,
            open_rows(),
            self.attempt(context),
            self.delivery_key,
            log=self.log,
            on_draft=lambda delivery: self._publish(context, delivery),
        )
        self._row = delivery.row
        return delivery

    def _publish(self, context: Context, delivery: Delivery) -> None:
        transfer_id = delivery.memory.transfer_id
        context["ti"].xcom_push("transfer_id", transfer_id)
        push_link(context, delivery.client.settings, transfer_id)

    def deliver(self, delivery: Delivery, context: Context, spool: Spool) -> Transfer:
        """Determine what to deliver, and deliver it."""
        self.prepare(delivery, context)
        if self.wait:
            self.validate_wait()
        max_parallel_uploads = to_whole_number(self.max_parallel_uploads, "max_parallel_uploads")
        return delivery.deliver(self.order(delivery, spool), max_parallel_uploads)

    def prepare(self, delivery: Delivery, context: Context) -> None:
        """Determine what to deliver, where the arguments do not say it; the delivery has begun."""

    def order(self, delivery: Delivery, spool: Spool) -> Order:
        """Return what to deliver."""
        from outbound_transfer.delivery.order import Order

        self.load_recipients(delivery)
        new = self.new_transfer()
        find = self.parse_files(spool)

        def find_sources(gone: list[OutboundTransferError] | None = None) -> Sequence[Source]:
            sources = find(gone)
            if gone is None:
                self.check_sources(sources)
            return sources

        return Order(new, find_sources)

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
        from outbound_transfer.delivery.check import is_of
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import read_memory

        memory = read_memory(open_rows(), TaskTry.of(context).task)
        if seen := transfer_from_event(event):
            self._sends, self._is_sent = seen.id, True
            if memory.transfer_id == seen.id and not is_of(memory, seen):
                raise AirflowFailException(OTHER_TRANSFER)
        return to_delivery_result(self.resolve_event(event), memory)

    def _wait_until_finished(self, hook: OutboundTransferHook, transfer: Transfer, context: Context) -> Transfer:
        deadline = self.get_or_create_deadline(context)
        if self.deferrable:
            self._last_logged = describe(transfer)  # the trigger logs it
        while not self.is_over(transfer):
            if self.deferrable:
                self.defer_wait(transfer.id, deadline, sent=transfer)
            self.check_deadline(transfer, deadline)
            time.sleep(to_seconds(self.poke_interval))
            transfer = self.poll_transfer(hook, transfer.id) or transfer
        return transfer
