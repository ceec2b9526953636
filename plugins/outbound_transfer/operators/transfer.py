"""Deliver files: create a draft, attach each file, send it (service-api.md, R2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from outbound_transfer.airflow_compat.names import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from outbound_transfer.airflow_compat.version import HAS_TABS
from outbound_transfer.delivery.content import wrap_contents
from outbound_transfer.delivery.progress import delivery_summary, log_archive, log_sources
from outbound_transfer.delivery.state_store import state_store
from outbound_transfer.delivery.task_run import MADE_KEY, POSSIBLE_SEND_KEY, iter_mappings, made_transfer
from outbound_transfer.links.deliveries import DeliveriesLink
from outbound_transfer.links.transfer import TransferLink, push_link
from outbound_transfer.observability import metrics
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.operators.recipients import RecipientsFromSql, mask_recipients
from outbound_transfer.protocol.errors import InvalidDelivery, OutboundTransferError
from outbound_transfer.protocol.flows import DiscardOutcome, discard_draft
from outbound_transfer.protocol.identity import identity_of
from outbound_transfer.protocol.ids import resolve_transfer_id
from outbound_transfer.protocol.models import build_new_transfer, to_builtins, to_result
from outbound_transfer.protocol.outcomes import OTHER_TRANSFER, TransferOutcome, describe
from outbound_transfer.protocol.wording import pluralize
from outbound_transfer.tasks.arguments import to_flag, to_repeatable, to_whole_number
from outbound_transfer.tasks.masking import MaskedValue, find_secrets, mask, mask_phones, mask_phones_in_log, unmask
from outbound_transfer.tasks.outcome_report import report_outcome
from outbound_transfer.tasks.waiting import DeferrableWaitMixin, to_seconds, transfer_from_event

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client import Settings
    from outbound_transfer.client.retry import RetryPolicy
    from outbound_transfer.delivery.comparison import DraftState
    from outbound_transfer.delivery.content import Spool
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.delivery.sources import ParsedSpec, PlainSpec, Source
    from outbound_transfer.delivery.state import DeliveryState, StateStore
    from outbound_transfer.delivery.task_run import TaskRun
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.protocol.messages import Precondition
    from outbound_transfer.protocol.models import NewTransfer, Transfer

    #: Finds the files; takes a list for the errors of those that are gone if they are compared with what was sent.
    FindSources: TypeAlias = Callable[..., Sequence[Source]]


class _TransferOperator(OutboundTransferOperator):
    """An operator that works on one transfer: its link and its lineage."""

    operator_extra_links = (TransferLink(),) if HAS_TABS else (TransferLink(), DeliveriesLink())

    _delivery: Delivery | None = None

    def delivery(self, hook: OutboundTransferHook, context: Context) -> Delivery:
        """Return the delivery of this try of the task."""
        from outbound_transfer.delivery.delivery import Delivery

        client, (run, store) = hook.get_conn(), self.open_state(hook, context)
        count_sent = partial(metrics.DELIVERIES.emit, outcome="sent", conn_id=self.outbound_transfer_conn_id)
        self._delivery = Delivery(client, store, hook.log, run=run, observer=self.recorder, on_sent=count_sent)
        return self._delivery

    def open_state(self, hook: OutboundTransferHook, context: Context) -> tuple[TaskRun, StateStore]:  # noqa: ARG002
        """Return this try of the task, and what keeps the state of its delivery."""
        from outbound_transfer.delivery.task_run import TaskRun

        return TaskRun(context, resumed=self._was_deferred), state_store(context)

    def check_account(self, delivery: Delivery, context: Context, transfer_id: str) -> None:
        """Check that an upstream task, if one made the draft, made it in the account that the connection leads to.

        :raises WrongTransfer: it was made in another account; here the id may belong to another transfer.
        """
        pulled = context["ti"].xcom_pull(task_ids=sorted(self.upstream_task_ids), key=MADE_KEY) or ()
        for made in iter_mappings(pulled):
            if made.get("transfer_id") == transfer_id:
                delivery.check_account(transfer_id, str(made.get("account")))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the files, the transfer and its status; OpenLineage's provider calls it, if installed."""
        from outbound_transfer.lineage.openlineage import delivery_lineage

        return delivery_lineage(self, task_instance)

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete


def _push_account(
    context: Context, settings: Settings, transfer_id: str, before: Sequence[Any] = (), delivery_key: str = ""
) -> None:
    """Store the account that a draft was made in, for the tasks downstream and for other runs.

    :param before: what this task made earlier in its run: Airflow has removed the XComs of earlier tries.
    :param delivery_key: under which other runs may have made it.
    """
    made = made_transfer(transfer_id, settings.account, delivery_key)
    context["ti"].xcom_push(MADE_KEY, [*(one for one in before if one != made and one["transfer_id"]), made])


@contextmanager
def _mention_sent_transfer(transfer_id: str) -> Iterator[None]:
    """Let an error of the wait say that the transfer was sent; "" if its id is not known."""
    try:
        yield
    except (AirflowSkipException, AirflowRescheduleException):
        raise
    except (Exception, AirflowTaskTimeout) as error:
        if transfer_id:
            _change_text(error, f"Transfer {transfer_id} was sent. {error}")
        raise


def _change_text(error: BaseException, text: str) -> None:
    """Give an error another text, and leave it what it is, which may decide whether the task is retried.

    :raises AirflowException: instead of the error, if its class makes its own text.
    """
    arguments, error.args = error.args, (text,)
    if text not in str(error):
        error.args = arguments
        raise AirflowException(text) from error


class _SendingOperator(_TransferOperator):
    """An operator whose errors, of whatever kind and origin, name what the task has sent or may have sent."""

    #: As it was last read, where the task waits for it.
    _last_read: Transfer | None = None

    #: The id of a draft that another task made and this one is to send.
    _sends: str = ""

    def execute(self, context: Context) -> Any:
        with self._report_failure(context):
            return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with self._report_failure(context):
            return super().resume_execution(next_method, next_kwargs, context)

    @contextmanager
    def _report_failure(self, context: Context) -> Iterator[None]:
        find_outcome = partial(self._find_outcome, context)
        with report_outcome(context, find_outcome), self._mention_possible_send(context):
            yield

    def _find_outcome(self, context: Context, error: BaseException) -> TransferOutcome | None:
        draft = self._delivery.draft if self._delivery else None
        read, possible_send = self._last_read or (draft and draft.transfer), self._find_possible_send(context)
        if read and not (read.is_draft and possible_send):  # a draft may be one no longer
            return TransferOutcome.from_transfer(read, str(error))
        transfer_id = possible_send or self._sends
        return TransferOutcome(transfer_id, str(error)) if transfer_id else None

    @contextmanager
    def _mention_possible_send(self, context: Context) -> Iterator[None]:
        from outbound_transfer.protocol.endpoints import send_in_doubt_warning

        try:
            yield
        except (AirflowSkipException, AirflowRescheduleException):
            raise
        except (Exception, AirflowTaskTimeout) as error:
            text, transfer_id = str(error), self._find_possible_send(context)
            if transfer_id:
                with suppress(Exception):  # it is for a task that discards drafts, and the error matters more
                    context["ti"].xcom_push(POSSIBLE_SEND_KEY, {"transfer_id": transfer_id})
            if transfer_id and transfer_id not in text:
                end = "" if text.endswith((".", "!", "?")) else "."
                _change_text(error, f"{text}{end} {send_in_doubt_warning(transfer_id)}")
            raise

    def load_state(self, context: Context) -> DeliveryState | None:
        """Return what the newest try of this delivery stored, or None."""
        from outbound_transfer.delivery import state as states

        return states.load(state_store(context), int(context["ti"].try_number))

    def _find_possible_send(self, context: Context) -> str:
        """Return the id of what this task has sent or may have sent; "" if it has not, or not more than it says."""
        history = self._delivery.history if self._delivery else None
        state = history.latest if history else None
        if state is None:
            with suppress(Exception):  # what is wrong may be the store
                state = self.load_state(context)
        is_replaced = state and history and history.replaced and history.replaced.transfer_id == state.transfer_id
        return state.transfer_id if state and state.send_started and not is_replaced else ""


#: Arguments that are a single text.
_TEXT_FIELDS: Final = ("subject", "message", "security", "security_question", "security_answer")


def _clean_rendered(name: str, template: Any, value: Any) -> Any:
    """Return a rendered text, with None for the text "None" that Airflow makes of a template without a value.

    ``security`` keeps the text "None", which is refused: the account's default, perhaps a weaker option, applies only
    if the argument is not given.
    """
    value = _replace_none_texts(template, value)
    return "None" if name == "security" and isinstance(template, str) and value is None else value


def _replace_none_texts(template: Any, value: Any) -> Any:
    """Return ``value`` with None for each template in ``template`` that rendered to "None"."""
    if isinstance(template, str):
        return None if "{" in template and isinstance(value, str) and value == "None" else value
    if isinstance(template, Mapping) and isinstance(value, Mapping):
        return {key: _replace_none_texts(template.get(key), each) for key, each in value.items()}
    if isinstance(template, list | tuple) and isinstance(value, list | tuple) and len(template) == len(value):
        return [_replace_none_texts(*each) for each in zip(template, value, strict=True)]
    return value


class _NewTransferOperator(_TransferOperator):
    """An operator with the arguments that describe a new transfer."""

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "subject",
        "recipients",
        "message",
        "security",
        "security_question",
        "security_answer",
        "resend",
    )

    def __init__(
        self,
        *,
        subject: str,
        recipients: Any,
        message: str | None = None,
        security: str | None = None,
        security_question: str | None = None,
        security_answer: str | None = None,
        resend: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.subject = subject
        self.recipients = to_repeatable(recipients)
        self.message = message
        self.security = security
        self.security_question = security_question
        self.security_answer = security_answer
        self.resend = resend

    def _do_render_template_fields(self, parent: Any, template_fields: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(parent, RecipientsFromSql):
            # Airflow logs a field that fails to render, and these parameters are never shown.
            parent.parameters = self.render_template(parent.parameters, *args, **kwargs)
            template_fields = [name for name in template_fields if name != "parameters"]
        # Airflow stores and shows rendered fields; their secrets are masked before it does.
        mask_phones_in_log(self.recipients)  # Airflow logs a template that fails to render
        templates, recipients = {name: getattr(self, name) for name in _TEXT_FIELDS}, self.recipients
        if isinstance(recipients, RecipientsFromSql):
            self.recipients = copy(recipients)  # its templates are rendered in place, for this task instance alone
        try:
            super()._do_render_template_fields(parent, template_fields, *args, **kwargs)
        except BaseException:
            self.security_answer, self.recipients = mask(self.security_answer), MaskedValue(self.recipients)
            raise
        if parent is self:  # and not for an argument that has its own templates
            for name, template in templates.items():
                setattr(self, name, _clean_rendered(name, template, getattr(self, name)))
            self.recipients = _replace_none_texts(recipients, self.recipients)
            self.security_answer = mask(self.security_answer)
            self.recipients = mask_recipients(self.recipients)

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        secrets = find_secrets([self.security_answer, self.recipients])
        return super().hook(secrets=tuple(secrets), **client_options)

    def load_recipients(self, delivery: Delivery) -> None:
        """Run the query for the recipients, if there is one; from then on their phones are masked.

        :raises InvalidDelivery: it returns no row, or none that is a recipient.
        :raises AirflowSkipException: it returns no row, and the task is to be skipped then.
        """
        query = self.recipients
        if not isinstance(query, RecipientsFromSql):
            return
        rows = query.load()
        self.log.info("The query for the recipients returned %s", pluralize(len(rows), "row"))
        if not rows:
            reason = "The query for the recipients returned no row: nothing is delivered"
            if query.on_empty == "skip" and not delivery.history.needs_same_input(
                resend=to_flag(self.resend, "resend")
            ):
                raise AirflowSkipException(reason)
            raise InvalidDelivery(reason)
        self.recipients = mask_phones(rows)
        delivery.client.add_secrets(find_secrets(self.recipients))

    def new_transfer(self) -> NewTransfer:
        """Return the draft to create, validated.

        :raises InvalidDelivery: listing every mistake.
        """
        return build_new_transfer(
            subject=self.subject,
            recipients=unmask(self.recipients),
            message=self.message,
            security=self.security,
            security_question=self.security_question,
            security_answer=unmask(self.security_answer),
        )


class CreateTransferOperator(_NewTransferOperator):
    """Create a draft: nothing is delivered or billed until it is sent, and it is removed after 30 days.

    A retry or a clear resumes the draft of the earlier try. See service-api.md, R22 to R25.

    :param subject: not empty.
    :param recipients: 1 to 250 addresses, or mappings with ``email`` and optionally ``name`` and ``phone``. A template
        may render to JSON, or to the text of a Python list or mapping. Or the rows of a query:
        :class:`~outbound_transfer.operators.recipients.RecipientsFromSql`.
    :param message: up to 2,000 characters.
    :param security: one of none, email, email_code, question, sms, login; by default, and for None, the account's
        option. An empty text is refused: what a template without a value gives is no choice of that option.
    :param security_question: only with ``security="question"``.
    :param security_answer: only with ``security="question"``; masked everywhere.
    :param resend: create a new draft if the task is cleared after its transfer was sent: true or false, as a bool or as
        text, which a template gives.
    :return: the transfer's id.
    """

    def run_task(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> str:  # noqa: ARG002
        delivery, resend = self.delivery(hook, context), to_flag(self.resend, "resend")
        with delivery.annotate_in_doubt_errors():
            delivery.history.begin()
            self.load_recipients(delivery)
            new = self.new_transfer()
            draft = delivery.history.find_previous_attempt(new, resend=resend) or delivery.create(new)
            transfer_id = draft.state.transfer_id
        _push_account(context, hook.get_conn().settings, transfer_id)
        push_link(context, hook.get_conn().settings, transfer_id)
        return transfer_id


class _FilesOperator(_TransferOperator):
    """An operator with the arguments that say which files to attach."""

    def __init__(
        self, *, files: Any, archive: str | None = None, max_parallel_uploads: int | str = 4, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.files = wrap_contents(to_repeatable(files), rendered=False)
        self._given_files = id(files)
        self.archive = archive
        self.max_parallel_uploads = max_parallel_uploads

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: Any, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        if parent is self and self._given_files in seen_oids:
            # What a task returned is no template, and Airflow knows it by its id.
            template_fields = [name for name in template_fields if name != "files"]
        # Airflow stores and shows rendered fields; contents are wrapped before it does.
        templates = self.files
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self:  # and not for an argument that has its own templates
            self.files = wrap_contents(_replace_none_texts(templates, self.files), rendered=True)

    def parse_files(self, spool: Spool) -> tuple[list[PlainSpec], FindSources]:
        """Check the arguments; nothing is read or produced.

        :return: what is asked for, as JSON can represent it; and what finds the files, and packs them.
        """
        from outbound_transfer.delivery.archive import check_archive_name, pack
        from outbound_transfer.delivery.sources import normalize_files

        specs, archive = self.file_specs(), check_archive_name(self.archive)

        def find(gone: list[OutboundTransferError] | None = None) -> Sequence[Source]:
            sources = log_sources(self.find_sources(specs, spool, gone), self.log)
            if not archive or gone:
                return sources
            return [log_archive(pack(archive, sources, spool), sources, self.log)]

        return [*normalize_files(specs), *([{"archive": archive}] if archive else ())], find

    def file_specs(self) -> list[ParsedSpec]:
        """Return what is to be delivered; nothing is read or produced."""
        from outbound_transfer.delivery.sources import parse_files

        return parse_files(self.files)

    def find_sources(
        self, specs: Sequence[ParsedSpec], spool: Spool, gone: list[OutboundTransferError] | None
    ) -> list[Source]:
        """Find the files, and produce what exists nowhere yet.

        :param specs: of :meth:`file_specs`.
        :param gone: see :func:`.resolve_files`; None if they are not only compared with what was sent.
        """
        from outbound_transfer.delivery.sources import resolve_files

        return resolve_files(specs, spool, gone)


class AttachFilesOperator(_FilesOperator):
    """Attach files to a draft. A retry attaches the missing ones (service-api.md, R30 to R33).

    :param transfer_id: the draft.
    :param files: one or several paths, URIs (``s3://…``) or globs; a mapping ``{"path": …, "name": …}`` renames a file,
        and a mapping ``{"name": …, "content": …}`` is a file with that content: text (UTF-8), bytes, a binary file, a
        DataFrame of pandas or polars, or a callable that returns one of them and is called in each try.
    :param archive: name of a ZIP file, to deliver all files as this one.
    :param max_parallel_uploads: how many files to upload at once, from 1 on. The largest is uploaded first, alone: if
        it is over the account's limit (413 ``file_too_large``), nothing has been uploaded.
    :return: the service's file records: ``id``, ``name`` and ``size`` in bytes, in the order of ``files``.
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "transfer_id",
        "files",
        "archive",
        "max_parallel_uploads",
    )

    def __init__(self, *, transfer_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id

    def run_task(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        from outbound_transfer.delivery.content import Spool

        with Spool() as spool:
            return self._attach(hook, context, spool)

    def _attach(self, hook: OutboundTransferHook, context: Context, spool: Spool) -> list[dict[str, Any]]:
        delivery = self.delivery(hook, context)
        files, find = self.parse_files(spool)
        max_parallel_uploads = to_whole_number(self.max_parallel_uploads, "max_parallel_uploads")
        transfer_id = resolve_transfer_id(self.transfer_id)
        push_link(context, delivery.client.settings, transfer_id)
        self.check_account(delivery, context, transfer_id)
        draft = delivery.load_draft(transfer_id)
        planned = draft.state.files.keys()
        if planned and planned <= draft.attached.keys() and not draft.transfer.is_draft:
            delivery.check_files_unchanged(draft, files, find)
            self.log.info("Transfer %s was sent with these files; nothing is attached again", transfer_id)
            records = [draft.attached[name] for name in planned]
        else:
            records = delivery.attach(
                draft, find(), files=files, exclusive=False, max_parallel_uploads=max_parallel_uploads
            )
        result: list[dict[str, Any]] = to_builtins(records)
        return result


class SendTransferOperator(_SendingOperator):
    """Send a draft once: bills the account, emails the recipients and starts the expiration (service-api.md, R36).

    :param transfer_id: the draft; a transfer that was sent already is returned as it is.
    :param slot_timeout: how long to wait for a slot while the account is at its limit of outstanding transfers (409
        ``transfer_limit_reached``), in seconds or as a timedelta.
    :param resend: send another transfer than this task has sent in its run, if it is cleared.
    :return: the sent transfer as a mapping with the fields of service-api.md, R11.
    """

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "transfer_id",
        "slot_timeout",
        "resend",
    )

    def __init__(
        self,
        *,
        transfer_id: str,
        slot_timeout: float | timedelta = timedelta(hours=1),
        resend: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id
        self.slot_timeout = slot_timeout
        self.resend = resend

    def call_retry_policy(self) -> RetryPolicy:
        return _policy_with_slot_timeout(self.slot_timeout)

    def run_task(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> dict[str, Any]:
        delivery, transfer_id = self.delivery(hook, context), resolve_transfer_id(self.transfer_id)
        self._sends = transfer_id
        resend = to_flag(self.resend, "resend")
        push_link(context, delivery.client.settings, transfer_id)
        self.check_account(delivery, context, transfer_id)
        with delivery.annotate_in_doubt_errors():
            transfer = delivery.send_draft(
                transfer_id,
                resumed=resumed,
                resend=resend,
                announce=lambda: _push_account(
                    context, delivery.client.settings, transfer_id, delivery.history.made_before()
                ),
            )
        self.log.info("%s", delivery_summary(transfer, transfer.files, context["ti"], delivery.client.settings))
        return to_result(transfer)


class DiscardTransferOperator(_TransferOperator):
    """Remove a draft that its run will not send, in a task that runs also if those before it failed.

    ``deliver >> discard.as_teardown()`` is such a task, and ``send >> discard.as_teardown(setups=create)`` for a draft
    that ``create`` made; the run's state stays that of the others. A sent transfer is left alone, and so is a
    draft if a task directly upstream has failed with its send in doubt.

    :param transfer_id: the draft; empty if its task created none, then nothing is done.
    :return: False if the transfer was sent or may have been; True if the draft was removed, or the connection's key
        sees none.
    """

    template_fields: Sequence[str] = (*OutboundTransferOperator.template_fields, "transfer_id")

    owns_delivery = False

    def __init__(self, *, transfer_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id

    def run_task(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> bool:  # noqa: ARG002
        if self.transfer_id in (None, "", "None"):  # "None": the template of an XCom that was never pushed
            self.log.info("No draft was created; nothing to discard")
            return True
        push_link(context, hook.get_conn().settings, self.transfer_id)
        self.check_account(self.delivery(hook, context), context, self.transfer_id)
        if self._is_send_in_doubt(context):
            self.log.warning(
                "Transfer '%s' may have been sent, as the error of the task that sends it says: it is left alone",
                self.transfer_id,
            )
            return False
        outcome = hook.run(discard_draft(self.transfer_id))
        if outcome is DiscardOutcome.REMOVED:
            self.recorder.record_draft_removed(self.transfer_id)
        self.log.info("Transfer %s: %s", self.transfer_id, outcome.value)
        return outcome is not DiscardOutcome.SENT

    def _is_send_in_doubt(self, context: Context) -> bool:
        possible = context["ti"].xcom_pull(task_ids=sorted(self.upstream_task_ids), key=POSSIBLE_SEND_KEY) or ()
        return any(one.get("transfer_id") == self.transfer_id for one in iter_mappings(possible))


class DeliverFilesOperator(_SendingOperator, DeferrableWaitMixin, _FilesOperator, _NewTransferOperator):
    """Create, attach and send in one task, and optionally wait until the transfer is picked up.

    A retry resumes where the earlier try stopped; a clear after the send returns the same transfer. Pushes the XCom
    ``transfer_id`` as soon as the draft exists. See :class:`CreateTransferOperator` for the draft's arguments.

    :param files: see :class:`AttachFilesOperator`.
    :param archive: see :class:`AttachFilesOperator`.
    :param max_parallel_uploads: see :class:`AttachFilesOperator`.
    :param slot_timeout: see :class:`SendTransferOperator`.
    :param keep_draft: whether the draft stays at the service if the task fails for good before its send, or is skipped,
        so that a clear continues with it. By default the task removes it. A draft whose send is in doubt always stays.
    :param delivery_key: identifies the delivery, as ``job_id`` does BigQuery's jobs: under one key, one transfer of the
        account is sent, whatever DAG run, task or map index delivers it. Who comes later gets that transfer, or fails
        if its input differs. By default a delivery is that of one task in one run. Needs the database of
        ``state_conn_id`` or ``ledger_conn_id``; without ``resend``.
    :param wait: wait until every recipient picked the transfer up, or it expired or was canceled.
    :param str on_expired: outcome of the task when the transfer expires: ``fail``, ``succeed`` or ``skip``.
    :param str on_canceled: outcome of the task when the transfer is canceled: ``fail``, ``succeed`` or ``skip``.
    :param bool accept_partial: whether the task succeeds as soon as one recipient has picked up.
    :param bool finish_in_triggerer: whether a success or a skip finishes without a worker; needs ``deferrable``.
    :param poke_interval: seconds between two polls of the transfer.
    :param timeout: how long to wait at most, in seconds or as a timedelta; by default until it finishes.
    :return: the transfer as last read, as a mapping with the fields of service-api.md, R11.
    """

    template_fields: Sequence[str] = (
        *_NewTransferOperator.template_fields,
        "files",
        "archive",
        "max_parallel_uploads",
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
        slot_timeout: float | timedelta = timedelta(hours=1),
        keep_draft: bool = False,
        delivery_key: str | None = None,
        wait: bool = False,
        poke_interval: float | timedelta = 60,
        timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.slot_timeout = slot_timeout
        self.keep_draft = keep_draft
        self.delivery_key = delivery_key
        self.wait = wait
        self.poke_interval = poke_interval
        self.timeout = timeout

    def call_retry_policy(self) -> RetryPolicy:
        return _policy_with_slot_timeout(self.slot_timeout)

    def run_task(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> dict[str, Any]:
        from outbound_transfer.delivery.content import Spool

        delivery = self.delivery(hook, context)
        keep_or_discard = nullcontext() if self.keep_draft else self._discard_unsent(delivery)
        with Spool() as spool, keep_or_discard, delivery.annotate_in_doubt_errors(), self._no_skip_after_send(delivery):
            transfer = self._deliver(delivery, context, spool, resumed=resumed and delivery.run.resumed)
        with suppress(Exception):  # if it is not stored, others wait for this task to finish
            delivery.run.record_sent(transfer.id)
        self._is_delivered = True
        if self.wait:
            with _mention_sent_transfer(transfer.id):
                return self._wait_until_finished(hook, transfer, context)
        return to_result(transfer)

    @contextmanager
    def _no_skip_after_send(self, delivery: Delivery) -> Iterator[None]:
        """Let nothing that the block calls skip a task that has sent, or may have: a skip says that it has not.

        :raises InvalidDelivery: instead of the skip.
        """
        try:
            yield
        except AirflowSkipException as skip:
            if delivery.history.needs_same_input(resend=to_flag(self.resend, "resend")):
                raise InvalidDelivery(
                    "The task cannot be skipped any more, as an earlier attempt has sent its delivery, or may have. "
                    f"What was to skip it: {skip or 'AirflowSkipException'}"
                ) from skip
            raise

    def open_state(self, hook: OutboundTransferHook, context: Context) -> tuple[TaskRun, StateStore]:
        from outbound_transfer.delivery.delivery_key import claim_delivery_key

        if self.delivery_key is None:
            return super().open_state(hook, context)
        if to_flag(self.resend, "resend"):
            raise AirflowFailException("resend and delivery_key: a key is delivered once, so give it another key")
        return claim_delivery_key(context, hook.get_account(), self.delivery_key)

    def load_state(self, context: Context) -> DeliveryState | None:
        from outbound_transfer.delivery import state as states
        from outbound_transfer.delivery.delivery_key import open_delivery_key

        if self.delivery_key is None:
            return super().load_state(context)
        with self.hook() as hook:
            return states.load(open_delivery_key(context, hook.get_account(), self.delivery_key), 1)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Finish with the trigger's event, if it is about the transfer that was sent."""
        sent = self.load_state(context)
        sent_id = sent.transfer_id if sent and sent.send_started else ""
        with _mention_sent_transfer(sent_id):
            seen = transfer_from_event(event)
        if seen and sent and sent.transfer_id != seen.id:
            sent = None  # the record of an earlier try: that of this one is lost
        with _mention_sent_transfer(seen.id if seen else sent_id):
            if seen and sent and not sent.matches_identity(identity_of(seen)):
                raise AirflowFailException(OTHER_TRANSFER)
            return super().execute_complete(context, event)

    def prepare(self, delivery: Delivery, context: Context) -> None:
        """Determine what to deliver, where the arguments do not say it; the delivery has begun."""

    def _deliver(self, delivery: Delivery, context: Context, spool: Spool, *, resumed: bool) -> Transfer:
        if delivery.run.is_sent:
            delivery.history.load()
        else:
            delivery.history.begin()
        self.prepare(delivery, context)
        if made := [one for one in delivery.history.made_before() if one["transfer_id"]]:
            context["ti"].xcom_push(MADE_KEY, made)  # also if this try fails
        if self.wait:
            self.validate_wait()
        self.load_recipients(delivery)
        new = self.new_transfer()
        files, find = self.parse_files(spool)
        if delivery.run.is_sent:
            return self._find_sent(delivery, context, new, files, find)
        max_parallel_uploads = to_whole_number(self.max_parallel_uploads, "max_parallel_uploads")
        resend = to_flag(self.resend, "resend")
        draft = delivery.history.resume_deferred(new) if resumed else None
        draft = draft or delivery.history.find_previous_attempt(new, files, resend=resend)
        delivery.draft = draft
        if draft:
            # Also that of an earlier try: Airflow has removed the XComs of that try.
            self._push_transfer_id(context, delivery, draft)
            if not draft.transfer.is_draft:
                delivery.check_files_unchanged(draft, files, find)
                return draft.transfer
        try:
            # Before anything is created: a missing file must leave no draft behind.
            sources = find()
            self.check_sources(sources)
        except (OutboundTransferError, AirflowSkipException):
            delivery.history.fail_if_sent(new, None, resend=resend)
            raise
        delivery.history.fail_if_sent(new, sources, resend=resend)
        if draft and (reason := delivery.reason_to_replace(draft, sources)):
            delivery.history.discard(draft.transfer.id, reason)
            draft = delivery.draft = None
        if not draft:
            draft = delivery.create(new, files)
            self._push_transfer_id(context, delivery, draft)
        records = delivery.attach(
            draft, sources, files=files, exclusive=True, max_parallel_uploads=max_parallel_uploads
        )
        transfer = delivery.send(draft.state, new, self.send_precondition())
        self.log.info("%s", delivery_summary(transfer, records, context["ti"], delivery.client.settings))
        return transfer

    def _find_sent(
        self, delivery: Delivery, context: Context, new: NewTransfer, files: Any, find: FindSources
    ) -> Transfer:
        """Return the transfer that was sent under this delivery key, if it is what this task is asked to deliver."""
        delivery.draft = draft = delivery.history.find_sent(new)
        self._push_transfer_id(context, delivery, draft)
        delivery.check_files_unchanged(draft, files, find)
        return draft.transfer

    def check_sources(self, sources: Sequence[Source]) -> None:
        """Check the files before anything is created; here, any will do."""

    def send_precondition(self) -> Precondition | None:
        """Return what must still hold right before each attempt at the send; here, nothing."""
        return None

    def _discard_unsent(self, delivery: Delivery) -> AbstractContextManager[None]:
        from outbound_transfer.client.retry import POLL_RETRY_POLICY
        from outbound_transfer.tasks.unsent_drafts import discard_unsent

        return discard_unsent(delivery, lambda: self.hook(policy=POLL_RETRY_POLICY))

    @staticmethod
    def _push_transfer_id(context: Context, delivery: Delivery, draft: DraftState) -> None:
        context["ti"].xcom_push("transfer_id", draft.state.transfer_id)
        _push_account(
            context,
            delivery.client.settings,
            draft.state.transfer_id,
            delivery.history.made_before(),
            delivery.run.delivery_key,
        )
        push_link(context, delivery.client.settings, draft.state.transfer_id)

    def _wait_until_finished(self, hook: OutboundTransferHook, transfer: Transfer, context: Context) -> dict[str, Any]:
        deadline = self.get_or_create_deadline(context)
        if self.deferrable:
            self._last_logged = describe(transfer)  # the trigger logs it
        while (result := self.resolve_outcome(transfer)) is None:
            if self.deferrable:
                self.defer_wait(transfer.id, deadline, sent=transfer)
            self.check_deadline(transfer, deadline)
            time.sleep(to_seconds(self.poke_interval))
            transfer = self.poll_transfer(hook, transfer.id) or transfer
            self.recorder.record_transfer(transfer)
        return result


def _policy_with_slot_timeout(slot_timeout: float | timedelta) -> RetryPolicy:
    from outbound_transfer.client.retry import RetryPolicy

    return RetryPolicy(slot_timeout=to_seconds(slot_timeout))
