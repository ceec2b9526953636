"""An operator that sends only what a person has approved, if that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from outbound_transfer.airflow_compat.human_input import await_response, request_input, required_actions_url
from outbound_transfer.airflow_compat.names import AirflowFailException, AirflowSkipException, BaseNotifier
from outbound_transfer.airflow_compat.version import HAS_HUMAN_INPUT
from outbound_transfer.ledger.config import shows_recipients
from outbound_transfer.operators.transfer_task import RehearsalFinished, SendingOperator
from outbound_transfer.protocol.deferral import ApprovalRequired
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.tasks.approval import Approval, ApprovalRequest, DraftContent, NotApproved, parse_response
from outbound_transfer.tasks.arguments import require_choice
from outbound_transfer.tasks.notifiers import call_notifiers, to_items, to_notifiers
from outbound_transfer.tasks.receipt import APPROVAL_KEY

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client import Client
    from outbound_transfer.delivery.memory import Memory
    from outbound_transfer.delivery.order import ApprovalCheck
    from outbound_transfer.protocol.deferral import DeferRequested
    from outbound_transfer.protocol.models import NewTransfer, Transfer

#: How long a draft lives (service-api.md, R25).
MAX_TIMEOUT: Final = timedelta(days=30)

_STATE_KEY: Final = "outbound_transfer_approval"


class ApprovedSendOperator(SendingOperator):
    """An operator that fills a draft, and sends it once a person has approved what it holds (Airflow 3.1 and newer).

    The task waits without a worker. The person sees subject, message, recipients, security and files, and the response
    is about exactly that: a draft with other content is asked about again. A clear asks anew, a retry does not.

    :param require_approval: ask before the send. A rejection discards the draft, and skips the task.
    :param approval_timeout: how long to wait for a response, up to the 30 days that a draft lives.
    :param on_approval_timeout: what to do then: ``fail``, or ``reject`` as a person would.
    :param approval_notifiers: are called when the task begins to wait, with ``approval`` in the context: ``subject``,
        ``body`` (Markdown) and ``url`` of the page in Airflow.
    :param approval_assigned_users: who may respond, as mappings with ``id`` and ``name`` of a user; by default, who may
        respond in Airflow at all.
    :param fail_on_reject: fail the task that is rejected.
    """

    #: What a person is asked, once the draft has been read.
    _request: ApprovalRequest | None = None
    #: Ends the task instead of its send.
    not_approved: Exception | None = None

    #: Shows a request in Airflow.
    request_input = staticmethod(request_input)

    def __init__(
        self,
        *,
        require_approval: bool = False,
        approval_timeout: timedelta = MAX_TIMEOUT,
        on_approval_timeout: str = "fail",
        approval_notifiers: Sequence[BaseNotifier] | BaseNotifier = (),
        approval_assigned_users: Sequence[dict[str, str]] | dict[str, str] = (),
        fail_on_reject: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.require_approval = require_approval
        self.approval_timeout = approval_timeout
        self.on_approval_timeout = on_approval_timeout
        self.approval_notifiers = approval_notifiers
        self.approval_assigned_users = approval_assigned_users
        self.fail_on_reject = fail_on_reject
        self._check_approval_arguments()

    def _check_approval_arguments(self) -> None:
        """:raises InvalidDelivery, AirflowFailException: naming the argument."""
        require_choice("on_approval_timeout", self.on_approval_timeout, ("fail", "reject"))
        if self.require_approval and not HAS_HUMAN_INPUT:
            raise InvalidDelivery("require_approval needs Airflow 3.1 or newer, which can ask a person")
        if not (isinstance(self.approval_timeout, timedelta) and timedelta() < self.approval_timeout <= MAX_TIMEOUT):
            raise InvalidDelivery(
                "approval_timeout is a timedelta over 0 and up to 30 days, after which the service removes a draft, "
                f"not {self.approval_timeout!r:.100}"
            )
        if self.approval_notifiers != ():
            to_notifiers(self.approval_notifiers, "approval_notifiers must be one BaseNotifier or several")
        users = to_items(self.approval_assigned_users)
        if not all(isinstance(user, Mapping) and {"id", "name"} == user.keys() for user in users):
            raise InvalidDelivery(f"approval_assigned_users are mappings with id and name, not {users!r:.100}")

    def approval_check(self, client: Client, context: Context, new: NewTransfer | None = None) -> ApprovalCheck | None:
        """Return what says whether a person has approved what a draft holds; None if nobody need.

        A rehearsal sends nothing, and asks nobody.

        :param new: what the draft is made from; None if another task makes it.
        :raises AirflowSkipException, AirflowFailException: somebody has rejected it, or nobody has responded.
        """
        if self.not_approved:
            raise self.not_approved
        if not self.require_approval or client.settings.rehearses:
            return None
        approval, facts = self._approval(context), self.pull_facts(context) if new is None else []

        def is_approved(draft: Transfer, files: Mapping[str, str]) -> bool:
            content = DraftContent.of(new, draft, files) if new else DraftContent.of_facts(facts, draft)
            code, url = content.code(client.settings.transfer_api_key), client.settings.transfer_url(draft.id)
            self._request = ApprovalRequest.about(content, code, url, shows_recipients=shows_recipients())
            return approval is not None and approval.code == code

        return is_approved

    def needs_no_draft(self, error: BaseException) -> bool:
        """Return whether an error means that nobody wants the draft to be sent."""
        return isinstance(error, RehearsalFinished) or error is self.not_approved

    def _approval(self, context: Context) -> Approval | None:
        from outbound_transfer.delivery.memory_store import state_store
        from outbound_transfer.tasks.waiting import stored_since_clear

        stored = stored_since_clear(state_store(context), _STATE_KEY, context)
        return msgspec.convert(stored["approval"], Approval) if stored else None

    def defer_for(self, request: DeferRequested, context: Context) -> NoReturn:
        if not isinstance(request, ApprovalRequired):
            super().defer_for(request, context)
        shown, url = self._request, required_actions_url(context)
        assert shown is not None, "the draft was looked at"
        self.request_input(context, shown.subject, shown.body, shown.options, to_items(self.approval_assigned_users))
        approval = {"subject": shown.subject, "body": shown.body, "url": url}
        call_notifiers(to_items(self.approval_notifiers), {**context, "approval": approval}, self.log)
        self.log.info("Waiting for a person to approve the send, without a worker: %s", url)
        arguments = {"code": shown.code}
        await_response(self, context, shown.options, self.approval_timeout, "resume_after_response", arguments)

    def resume_after_response(self, context: Context, event: Any = None, *, code: str = "") -> Any:
        """Continue with a person's response: send, or discard the draft."""
        response = parse_response(event, code)
        if isinstance(response, Approval):
            from outbound_transfer.delivery.memory_store import state_store
            from outbound_transfer.tasks.waiting import store_until_clear

            self.log.info("Approved by %s: %s", response.by, response.code)
            store_until_clear(state_store(context), _STATE_KEY, context, approval=msgspec.to_builtins(response))
        else:
            self.not_approved = self._failure_of(response)
        return self.resume(context)

    def _failure_of(self, response: NotApproved) -> Exception:
        text = f"Nothing is sent: {response.reason}"
        is_rejected = response.is_rejected or (response.is_late and self.on_approval_timeout == "reject")
        return AirflowSkipException(text) if is_rejected and not self.fail_on_reject else AirflowFailException(text)

    def publish_proof(
        self, context: Context, transfer: Transfer, memory: Memory | None = None, security: str | None = None
    ) -> None:
        """Store who has approved the send, for tasks downstream and the ledger, and write the receipt.

        :param memory, security: see :meth:`.write_receipt`.
        """
        if self.require_approval and (approval := self._approval(context)):
            context["ti"].xcom_push(APPROVAL_KEY, {"transfer_id": transfer.id, **msgspec.to_builtins(approval)})
            self.recorder.record_approval(transfer.id, approval.by, approval.at)
        self.write_receipt(context, transfer, memory, security)
