"""Deliver files: create a draft, attach each file, send it (service.md, What the service does)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from outbound_transfer import waiting
from outbound_transfer.hidden import Hidden, hide, hide_phones, mask_phones, reveal, secrets_in
from outbound_transfer.links import TransferLink, show
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.progress import found, summary

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.retry import RetryPolicy
    from outbound_transfer.delivery import Delivery, Draft
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.protocol.models import NewTransfer, Transfer


class _OfTransfer(OutboundTransferOperator):
    """An operator that works on one transfer: its link, and what OpenLineage's provider asks for."""

    operator_extra_links = (TransferLink(),)

    def delivery(self, hook: OutboundTransferHook, context: Context) -> Delivery:
        """The delivery of this try of the task."""
        from outbound_transfer.delivery import Delivery
        from outbound_transfer.task_run import TaskRun

        run = TaskRun(context, resumed=self._was_deferred)
        return Delivery(hook.get_conn(), context["task_state_store"], hook.log, run=run, journal=self.journal)

    def check_account(self, delivery: Delivery, context: Context, transfer_id: str) -> None:
        """See that the draft was made in the account that the connection leads to, where a task before made it.

        :raises WrongTransfer: it was made in another, where the id may be of something else.
        """
        pulled = context["ti"].xcom_pull(task_ids=sorted(self.upstream_task_ids), key=_MADE_IN) or ()
        for made in _mappings(pulled):
            if made.get("transfer_id") == transfer_id:
                delivery.check_account(transfer_id, str(made.get("account")))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The files, the transfer and its status; OpenLineage's provider calls it, where that is installed."""
        from outbound_transfer.operators.lineage import lineage

        return lineage(self, task_instance)

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete


#: The XCom that says in which account a draft was made.
_MADE_IN: Final = "outbound_transfer_made_in"


def _mappings(pulled: Any) -> Iterator[Mapping[str, Any]]:
    """The mappings in what was pulled of several tasks, of which some are mapped, and some have pushed nothing."""
    if isinstance(pulled, Mapping):
        yield pulled
    elif isinstance(pulled, Iterable) and not isinstance(pulled, str):
        for each in pulled:
            yield from _mappings(each)


@contextmanager
def _saying_that_it_was_sent(transfer_id: str) -> Iterator[None]:
    """Whatever a wait fails with, who reads it learns that the transfer is out."""
    try:
        yield
    except (AirflowFailException, AirflowSensorTimeout) as error:
        raise type(error)(f"Transfer {transfer_id} was sent. {error}") from error


#: Arguments that are one text.
_TEXTS: Final = ("subject", "message", "security", "security_question", "security_answer")


def _rendered(name: str, template: Any, value: Any) -> Any:
    """What a template gives, of which Airflow makes the word "None" where that is nothing.

    Nothing is no word to send. As a security option it stays the word, which is refused: the account's default, which
    may be a weaker one, is taken only where no option is asked for.
    """
    value = _without_none(template, value)
    return "None" if name == "security" and isinstance(template, str) and value is None else value


def _without_none(template: Any, value: Any) -> Any:
    """``value`` with None where a template in ``template`` has given nothing."""
    if isinstance(template, str):
        return None if "{" in template and isinstance(value, str) and value == "None" else value
    if isinstance(template, Mapping) and isinstance(value, Mapping):
        return {key: _without_none(template.get(key), each) for key, each in value.items()}
    if isinstance(template, list | tuple) and isinstance(value, list | tuple) and len(template) == len(value):
        return [_without_none(*each) for each in zip(template, value, strict=True)]
    return value


class _DescribesDraft(_OfTransfer):
    """Arguments that describe a draft."""

    template_fields: Sequence[str] = (
        *OutboundTransferOperator.template_fields,
        "subject",
        "recipients",
        "message",
        "security",
        "security_question",
        "security_answer",
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
        resend: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.subject = subject
        self.recipients = recipients
        self.message = message
        self.security = security
        self.security_question = security_question
        self.security_answer = security_answer
        self.resend = resend

    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        # Airflow stores and shows rendered fields; the secrets among them are hidden before it does.
        mask_phones(self.recipients)  # Airflow logs a template that fails
        templates, recipients = {name: getattr(self, name) for name in _TEXTS}, self.recipients
        try:
            super()._do_render_template_fields(parent, *args, **kwargs)
        except BaseException:
            self.security_answer, self.recipients = hide(self.security_answer), Hidden(self.recipients)
            raise
        if parent is self:  # and not an object among its arguments that has templates of its own
            for name, template in templates.items():
                setattr(self, name, _rendered(name, template, getattr(self, name)))
            self.recipients = _without_none(recipients, self.recipients)
            self.security_answer = hide(self.security_answer)
            self.recipients = hide_phones(self.recipients)

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        secrets = secrets_in([self.security_answer, self.recipients])
        return super().hook(secrets=tuple(secrets), **client_options)

    def new_transfer(self) -> NewTransfer:
        """The draft to create, checked."""
        from outbound_transfer.protocol.models import new_transfer

        return new_transfer(
            subject=self.subject,
            recipients=reveal(self.recipients),
            message=self.message,
            security=self.security,
            security_question=self.security_question,
            security_answer=reveal(self.security_answer),
        )


class CreateTransferOperator(_DescribesDraft):
    """Create a draft. Nothing is delivered or billed until it is sent; a draft lives 30 days.

    A retry or a clear goes on with the draft of the earlier try.

    :param subject: not empty.
    :param recipients: 1 to 250 addresses, or mappings with ``email`` and optionally ``name`` and ``phone``. A template
        may render to JSON, or to what Python writes for a list or a mapping.
    :param message: up to 2,000 characters.
    :param security: one of none, email, email_code, question, sms, login; the account's default where not given.
    :param security_question: with ``security="question"`` only.
    :param security_answer: with ``security="question"`` only; shown nowhere.
    :param resend: make a new draft when the task is cleared after its transfer was sent.
    :return: the transfer's id.
    """

    def work(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> str:  # noqa: ARG002
        new = self.new_transfer()
        delivery = self.delivery(hook, context)
        with delivery.telling_of_a_send():
            earlier = delivery.earlier(new, resend=self.resend)
            transfer_id = (earlier or delivery.create(new)).state.transfer_id
        account = {"transfer_id": transfer_id, "account": hook.get_conn().settings.account}
        context["ti"].xcom_push(_MADE_IN, account)
        show(context, hook.get_conn().settings, transfer_id)
        return transfer_id


class AttachFilesOperator(_OfTransfer):
    """Attach files to a draft. A retry attaches what is missing.

    :param transfer_id: the draft.
    :param files: one or many paths, URIs (``s3://…``) or globs; a mapping ``{"path": …, "name": …}`` renames a file.
    :return: the service's file records: ``id``, ``name`` and ``size`` in bytes.
    """

    template_fields: Sequence[str] = (*OutboundTransferOperator.template_fields, "transfer_id", "files")

    def __init__(self, *, transfer_id: str, files: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id
        self.files = files

    def work(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        from outbound_transfer.protocol.ids import transfer_id_of
        from outbound_transfer.protocol.models import as_json
        from outbound_transfer.sources import find_sources, normalized_files

        delivery, asked = self.delivery(hook, context), normalized_files(self.files)
        transfer_id = transfer_id_of(self.transfer_id)
        show(context, delivery.client.settings, transfer_id)
        self.check_account(delivery, context, transfer_id)
        draft = delivery.draft(transfer_id)
        planned = draft.state.files.keys()
        if planned and planned <= draft.held.keys() and not draft.transfer.is_draft:
            delivery.check_same_files(draft, asked, lambda: find_sources(asked))
            self.log.info("Transfer %s was sent with these files; nothing is attached again", transfer_id)
            records = [draft.held[name] for name in planned]
        else:
            sources = found(find_sources(asked), self.log)
            records = delivery.attach(draft, sources, files=asked, only_ours=False)
        result: list[dict[str, Any]] = as_json(records)
        return result


class SendTransferOperator(_OfTransfer):
    """Send a draft: bills it, emails the recipients, starts the expiration clock. Never sends twice.

    :param transfer_id: the draft; one that was sent already is returned as it is.
    :param limit_timeout: how long to wait for a slot when the account has as many outstanding transfers as it may
        (409 ``transfer_limit_reached``), in seconds or as a timedelta.
    :param resend: send another transfer than this task has sent in its run, when it is cleared.
    :return: the sent transfer, as a mapping of service.md's fields.
    """

    template_fields: Sequence[str] = (*OutboundTransferOperator.template_fields, "transfer_id", "limit_timeout")

    def __init__(
        self,
        *,
        transfer_id: str,
        limit_timeout: float | timedelta = timedelta(hours=1),
        resend: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id
        self.limit_timeout = limit_timeout
        self.resend = resend

    def retry_policy_of_calls(self) -> RetryPolicy:
        return _patient_for_slot(self.limit_timeout)

    def work(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> dict[str, Any]:
        from outbound_transfer.protocol.ids import transfer_id_of
        from outbound_transfer.protocol.models import as_json

        delivery, transfer_id = self.delivery(hook, context), transfer_id_of(self.transfer_id)
        show(context, delivery.client.settings, transfer_id)
        self.check_account(delivery, context, transfer_id)
        with delivery.telling_of_a_send():
            transfer = delivery.send_draft(transfer_id, resumed=resumed, resend=self.resend)
        self.log.info("%s", summary(transfer, transfer.files, context["ti"], delivery.client.settings))
        result: dict[str, Any] = as_json(transfer)
        return result


class DiscardTransferOperator(_OfTransfer):
    """Remove a draft that its run will not send; made for a teardown task. A sent transfer is left alone.

    :param transfer_id: the draft; nothing is done where there is none (its task never made one).
    :return: whether the draft is gone; False where it was sent.
    """

    template_fields: Sequence[str] = (*OutboundTransferOperator.template_fields, "transfer_id")

    delivers = False

    def __init__(self, *, transfer_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transfer_id = transfer_id

    def work(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> bool:  # noqa: ARG002
        from outbound_transfer.protocol.flows import discard_draft

        if self.transfer_id in (None, "", "None"):  # "None": the template of an XCom that was never pushed
            self.log.info("No draft was made; nothing to discard")
            return True
        show(context, hook.get_conn().settings, self.transfer_id)
        gone = hook.run(discard_draft(self.transfer_id))
        if gone:
            self.journal.removed(self.transfer_id)
        self.log.info("Transfer %s %s", self.transfer_id, "is no draft any more" if gone else "was sent; left alone")
        return gone


class DeliverFilesOperator(waiting.WaitsForEnd, _DescribesDraft):
    """Create, attach and send in one task, and wait for the end where asked to.

    A retry goes on where the earlier try stopped; a clear after the send returns the same transfer.
    Pushes the XCom ``transfer_id`` as soon as the draft exists.

    :param files: as of :class:`AttachFilesOperator`.
    :param limit_timeout: as of :class:`SendTransferOperator`.
    :param wait: whether to wait until every recipient has collected, or the transfer has expired or is canceled.
    :param on_expired, on_canceled, accept_partial, finish_in_triggerer: as of
        :class:`~outbound_transfer.sensors.transfer.TransferSensor`.
    :param poke_interval: seconds between two looks at the transfer.
    :param timeout: how long to wait at most, in seconds or as a timedelta; seven days where not given.
    :return: the transfer as last seen, sent or final, as a mapping of service.md's fields.
    """

    template_fields: Sequence[str] = (
        *_DescribesDraft.template_fields,
        "files",
        "limit_timeout",
        "on_expired",
        "on_canceled",
        "poke_interval",
        "timeout",
    )

    def __init__(
        self,
        *,
        files: Any,
        limit_timeout: float | timedelta = timedelta(hours=1),
        wait: bool = False,
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        finish_in_triggerer: bool = False,
        poke_interval: float | timedelta = 60,
        timeout: float | timedelta = timedelta(days=7),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        waiting.check_choices(on_expired=on_expired, on_canceled=on_canceled)
        self.files = files
        self.limit_timeout = limit_timeout
        self.wait = wait
        self.on_expired = on_expired
        self.on_canceled = on_canceled
        self.accept_partial = accept_partial
        self.finish_in_triggerer = finish_in_triggerer
        self.poke_interval = poke_interval
        self.timeout = timeout

    def retry_policy_of_calls(self) -> RetryPolicy:
        return _patient_for_slot(self.limit_timeout)

    def work(self, hook: OutboundTransferHook, context: Context, *, resumed: bool) -> dict[str, Any]:
        from outbound_transfer.protocol.models import as_json

        delivery = self.delivery(hook, context)
        if self.wait:
            self.check_wait()
        with delivery.telling_of_a_send():
            transfer = self._sent(delivery, context, resumed=resumed)
        if self.wait:
            with _saying_that_it_was_sent(transfer.id):
                return self._wait_for(hook, transfer, context)
        result: dict[str, Any] = as_json(transfer)
        return result

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """End with what the trigger saw, where that is the transfer that was sent."""
        from outbound_transfer import state as states
        from outbound_transfer.protocol.identity import identity_of

        sent = states.load(context["task_state_store"], int(context["ti"].try_number))
        with _saying_that_it_was_sent(sent.transfer_id if sent else ""):
            seen = waiting.seen_of(event)
            if seen and sent and not sent.is_about(identity_of(seen)):
                raise AirflowFailException(
                    "Under its id the connection leads to another transfer now, whose end is not this one's."
                )
            return super().execute_complete(context, event)

    def _sent(self, delivery: Delivery, context: Context, *, resumed: bool) -> Transfer:
        from outbound_transfer.sources import find_sources, normalized_files

        new, asked = self.new_transfer(), normalized_files(self.files)
        draft = delivery.paused(new) if resumed else None
        draft = draft or delivery.earlier(new, asked, resend=self.resend)
        if draft:
            # Also of an earlier try: Airflow removes what that try has pushed.
            self._push_id(context, delivery, draft)
            if not draft.transfer.is_draft:
                delivery.check_same_files(draft, asked, lambda: find_sources(asked))
                return draft.transfer
        # Found before anything is created: a missing file must leave nothing behind.
        sources = found(find_sources(asked), self.log)
        delivery.check_not_sent(new, sources, resend=self.resend)
        if draft and (reason := delivery.reason_for_another(draft, sources)):
            delivery.discard(draft.transfer.id, reason)
            draft = None
        if not draft:
            draft = delivery.create(new, asked)
            self._push_id(context, delivery, draft)
        files = delivery.attach(draft, sources, files=asked, only_ours=True)
        transfer = delivery.send(draft.state)
        self.log.info("%s", summary(transfer, files, context["ti"], delivery.client.settings))
        return transfer

    @staticmethod
    def _push_id(context: Context, delivery: Delivery, draft: Draft) -> None:
        context["ti"].xcom_push("transfer_id", draft.state.transfer_id)
        show(context, delivery.client.settings, draft.state.transfer_id)

    def _wait_for(self, hook: OutboundTransferHook, transfer: Transfer, context: Context) -> dict[str, Any]:
        from outbound_transfer.protocol.outcomes import story

        deadline = waiting.deadline(self.timeout, context)
        if self.deferrable:
            self._told = story(transfer)  # the trigger says it
        while (result := self.conclude(transfer)) is None:
            if self.deferrable:
                self.defer_wait(transfer.id, deadline)
            waiting.check_deadline(transfer, deadline)
            time.sleep(waiting.seconds(self.poke_interval))
            transfer = waiting.look(hook, transfer.id, self.log) or transfer
            self.journal.saw(transfer)
        return result


def _patient_for_slot(limit_timeout: float | timedelta) -> RetryPolicy:
    from outbound_transfer.client.retry import RetryPolicy

    return RetryPolicy(limit_patience=waiting.seconds(limit_timeout))
