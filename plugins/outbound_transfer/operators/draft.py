"""A delivery in three tasks: create a draft, attach files, send it or discard it (service-api.md, R2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.delivery.decision import Act, Phase
from outbound_transfer.files.content import Spool
from outbound_transfer.links.transfer import push_link
from outbound_transfer.operators import arguments, base, results
from outbound_transfer.operators.arguments import resolve_transfer_id
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE, OutboundTransferOperator

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from outbound_transfer.client.client import Client
    from outbound_transfer.delivery.row import Row
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.operators.arguments import Files, Recipients, TransferId
    from outbound_transfer.operators.task_arguments import TaskArguments


def row_of(client: Client, context: Context, transfer_id: str) -> Row:
    """Return the row of a draft that another task created, and link this task to it; see :func:`.require_row`."""
    from outbound_transfer.delivery.place import open_rows
    from outbound_transfer.delivery.row import require_row

    push_link(context, client.settings, transfer_id)
    return require_row(open_rows(), client.settings.account, transfer_id)


class CreateTransferOperator(OutboundTransferOperator):
    """Create a draft: nothing is delivered or billed until it is sent, and it is removed after 30 days.

    A retry or a clear deletes the previous attempt's draft, or returns the transfer if it was sent: only this task
    decides whether another one may be created. See service-api.md, R22 to R25.

    :param subject: the subject, which must not be empty.
    :param recipients: 1 to 250 different addresses, or mappings with ``email`` and optionally ``name`` and ``phone``; a
        template may render JSON or Python. Or :class:`~outbound_transfer.operators.recipients.RecipientsFromSql`.
    :param message: up to 2,000 characters.
    :param security: one of none, email, email_code, question, sms, login; by default, and for None, the account's
        option. An empty string, which a template without a value renders, is refused.
    :param security_question: only with ``security="question"``.
    :param security_answer: only with ``security="question"``; masked everywhere.
    :param outbound_transfer_conn_id: the Airflow connection.
    :return: the transfer's id.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", *base.TRANSFER_FIELDS)
    checks = arguments.TRANSFER_CHECKS

    def __init__(
        self,
        *,
        subject: str,
        recipients: Recipients,
        message: str | None = None,
        security: str | None = None,
        security_question: str | None = None,
        security_answer: str | None = None,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, **kwargs)
        self.subject: Any = subject
        self.recipients = recipients
        self.message = message
        self.security = security
        self.security_question = security_question
        self.security_answer = security_answer
        self.check_when_parsed()

    def run_task(self, hook: OutboundTransferHook, context: Context) -> str:
        from outbound_transfer.delivery.decision import Phase
        from outbound_transfer.delivery.delivery import Order

        client = hook.get_conn()
        delivery = self.begin(client, context)
        with base.no_skip_after_send(delivery):
            new = base.new_transfer(self, delivery)
        if delivery.prepare(Order(new)) is Act.CREATE:
            delivery.row.save(phase=Phase.HANDED_ON)
        push_link(context, client.settings, delivery.memory.transfer_id)
        return delivery.memory.transfer_id


class AttachFilesOperator(OutboundTransferOperator):
    """Attach files to a draft. A retry attaches the missing ones (service-api.md, R30 to R33).

    :param transfer_id: the draft.
    :param files: one or several paths, URIs (``s3://…``) or globs; a mapping ``{"path": …, "name": …}`` renames a file,
        and a mapping ``{"name": …, "content": …}`` is a file with that content: text (UTF-8), bytes, a binary file,
        or a callable that returns one of them and is called in each attempt.
    :param archive: name of a ZIP file, to deliver all files in it.
    :param checksums: name of an extra file, such as ``SHA256SUMS``, with all SHA-256 digests for ``sha256sum --check``.
    :param on_empty: what to do if a pattern in ``files`` matches nothing: ``fail``; or ``skip`` it, and the task if no
        file is left. A path without a pattern must exist.
    :param max_parallel_uploads: how many files to upload at once, at least 1. The largest is uploaded first, alone: if
        it exceeds the account's limit (413 ``file_too_large``), nothing has been uploaded.
    :param outbound_transfer_conn_id: the Airflow connection.
    :return: for each file, in the order of ``files``: ``id``, ``name``, ``size`` in bytes and ``sha256`` (hexadecimal;
        None after an erasure).
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", "transfer_id", *base.FILES_FIELDS)
    checks = (arguments.TRANSFER_ID_CHECK, *arguments.FILES_CHECKS)
    find_sources = base.find_sources

    def __init__(
        self,
        *,
        transfer_id: TransferId,
        files: Files,
        archive: str | None = None,
        checksums: str | None = None,
        on_empty: str = "fail",
        max_parallel_uploads: int = 4,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, **kwargs)
        self.transfer_id = transfer_id
        self.files: Any = files
        self.archive = archive
        self.checksums = checksums
        self.on_empty = on_empty
        self.max_parallel_uploads = max_parallel_uploads
        self.check_when_parsed()

    def run_task(self, hook: OutboundTransferHook, context: Context) -> list[dict[str, Any]]:
        from outbound_transfer.delivery.draft import Filling

        arguments.check_all(self, self.checks)
        client, attempt, transfer_id = hook.get_conn(), self.attempt(context), resolve_transfer_id(self.transfer_id)
        row = self.report.row = row_of(client, context, transfer_id)
        filling = Filling(client, row, transfer_id, attempt.name)
        with Spool() as spool:
            files = filling.attach(partial(base.find_files, self, spool), int(self.max_parallel_uploads))
        if not files:
            raise AirflowSkipException(base.NOTHING_MATCHES)
        return results.to_file_results(files, filling.files)


class SendTransferOperator(OutboundTransferOperator):
    """Send a draft once: bills the account, emails the recipients and starts the expiration (service-api.md, R36).

    Before each attempt, the draft is compared with what the upstream tasks created and attached.

    :param transfer_id: the draft; a transfer that was already sent is returned as it is.
    :param approval: result of the :class:`.ApproveTransferOperator` that must have approved the draft's contents. If a
        person was ever asked about the draft, the send needs the approval even without this argument.
    :param slot_timeout: how long to wait for a slot while the account is at its limit of outstanding transfers (409
        ``transfer_limit_reached``), or for the answer of a person who is asked to approve the draft.
    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: free the worker slot while the task waits for one of the account's slots.
    :return: the sent transfer: the fields of service-api.md, R11, with ``not_picked_up``, ``security``, ``approval``
        and the ``sha256`` of each file.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", "transfer_id", "approval", "slot_timeout")
    checks = (arguments.TRANSFER_ID_CHECK, arguments.SLOT_TIMEOUT_CHECK)
    sends = True

    def __init__(
        self,
        *,
        transfer_id: TransferId,
        approval: Mapping[str, Any] | XComArg | str | None = None,
        slot_timeout: timedelta = timedelta(hours=1),
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, deferrable=deferrable, **kwargs)
        self.transfer_id = transfer_id
        self.approval = approval
        self._needs_approval = approval is not None  # a skipped or failed task has no result
        self.slot_timeout = slot_timeout
        self.check_when_parsed()

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        from outbound_transfer.delivery.delivery import Delivery
        from outbound_transfer.delivery.row import Approval, require_draft

        self.report.transfer_id = transfer_id = resolve_transfer_id(self.transfer_id)
        client, attempt = hook.get_conn(), self.attempt(context)
        row = self.report.row = row_of(client, context, transfer_id)
        if attempt.claim:
            row.resume(attempt.claim)
        else:
            row.claim(attempt.by, lambda memory: require_draft(memory, transfer_id, Phase.HANDED_ON, Phase.SENDING))
        if self._needs_approval and row.memory.approval is None:
            row.save(approval=Approval())
        results.announce(self, client, context)
        delivery = Delivery(client, row, attempt)
        with results.finishing_rehearsal(delivery, context):
            transfer = delivery.send()
        self.report.is_sent = True
        if delivery.has_sent:
            self.log.info("%s", results.delivery_summary(transfer, client, context))
        return results.to_delivery_result(transfer, row.memory)


class DiscardTransferOperator(OutboundTransferOperator):
    """Remove a draft that its run will not send, in a task that runs even if earlier tasks failed.

    ``send >> discard.as_teardown()`` is such a task; it does not affect the run's state. With ``setups``, clearing any
    task in between would clear the setups as well, and so create another draft. A sent transfer is left alone.

    :param transfer_id: the draft; if it is empty, as when its task created none, nothing is done.
    :param outbound_transfer_conn_id: the Airflow connection.
    :return: False if the transfer was sent; True if the draft was removed or no longer exists.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", "transfer_id")
    owns_delivery = False

    def __init__(
        self,
        *,
        transfer_id: TransferId | None,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(outbound_transfer_conn_id=outbound_transfer_conn_id, **kwargs)
        self.transfer_id = transfer_id

    def run_task(self, hook: OutboundTransferHook, context: Context) -> bool:
        if self.transfer_id in (None, "", "None"):  # "None": the template of an XCom that was never pushed
            self.log.info("No draft id was given, so nothing is discarded")
            return True
        from outbound_transfer.delivery.delivery import Delivery
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import find_row, require_draft

        client, attempt, transfer_id = hook.get_conn(), self.attempt(context), resolve_transfer_id(self.transfer_id)
        push_link(context, client.settings, transfer_id)
        row = find_row(open_rows(), client.settings.account, transfer_id)
        if row and row.read()[1].phase is not Phase.EMPTY:
            row.claim(attempt.by, lambda memory: require_draft(memory, transfer_id, *Phase))
            is_removed = Delivery(client, row, attempt).discard()
        else:  # created outside this Airflow, or forgotten
            transfer = client.find_transfer(transfer_id)
            is_removed = transfer is None or transfer.is_draft
            if transfer and is_removed:
                client.discard_transfer(transfer_id)
        outcome = "the draft is removed" if is_removed else "it was sent, so it is left alone"
        self.log.info("Transfer %s: %s", transfer_id, outcome)
        return is_removed
