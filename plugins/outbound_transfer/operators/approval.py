"""An operator that sends only what a person has approved, if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from outbound_transfer.airflow_compat.human_input import await_response, request_input, required_actions_url
from outbound_transfer.airflow_compat.names import (
    NEVER_EXPIRE,
    AirflowFailException,
    AirflowSkipException,
    BaseNotifier,
)
from outbound_transfer.airflow_compat.version import HAS_HUMAN_INPUT
from outbound_transfer.ledger.config import shows_recipients
from outbound_transfer.operators.transfer_task import SendingOperator
from outbound_transfer.protocol.deferral import ApprovalRequired
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.models import to_builtins
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

#: Where a task stores what a person has chosen; and with which approval it has sent what.
_STATE_KEY: Final = "outbound_transfer_approval"
_PROOF_KEY: Final = "outbound_transfer_approved"


#: Arguments that have no effect where nobody is asked, and their defaults.
_OF_THE_APPROVAL: Final = {
    "approval_timeout": MAX_TIMEOUT,
    "on_approval_timeout": "fail",
    "approval_notifiers": (),
    "approval_assigned_users": (),
    "fail_on_reject": False,
}


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
    #: Why the task ends instead of its send, if that holds for this try alone.
    _not_approved: NotApproved | None = None
    _proof: Mapping[str, str] | None = None

    #: Shows a request in Airflow.
    request_input = staticmethod(request_input)

    def __init__(
        self,
        *,
        require_approval: bool = False,
        approval_timeout: timedelta = MAX_TIMEOUT,
        on_approval_timeout: str = "fail",
        approval_notifiers: Sequence[BaseNotifier] | BaseNotifier | None = None,
        approval_assigned_users: Sequence[dict[str, str]] | dict[str, str] | None = None,
        fail_on_reject: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.require_approval = require_approval
        self.approval_timeout = approval_timeout
        self.on_approval_timeout = on_approval_timeout
        self.approval_notifiers = approval_notifiers or ()
        self.approval_assigned_users = () if approval_assigned_users is None else approval_assigned_users
        self.fail_on_reject = fail_on_reject
        self._check_approval_arguments()

    def _check_approval_arguments(self) -> None:
        """:raises InvalidDelivery, AirflowFailException: naming the argument."""
        require_choice("on_approval_timeout", self.on_approval_timeout, ("fail", "reject"))
        if not isinstance(self.require_approval, bool):
            raise InvalidDelivery(f"require_approval is True or False, not {self.require_approval!r:.100}")
        for name, default in _OF_THE_APPROVAL.items():
            if not self.require_approval and getattr(self, name) != default:
                raise InvalidDelivery(f"{name} needs require_approval=True: without it, nobody is asked")
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
        is_given = self.approval_assigned_users != ()
        if is_given and not (users and all(isinstance(user, Mapping) and _is_user(user) for user in users)):
            raise InvalidDelivery(f"approval_assigned_users are mappings with id and name, as text, not {users!r:.100}")

    def approval_check(self, client: Client, context: Context, new: NewTransfer | None = None) -> ApprovalCheck | None:
        """Return what says whether a person has approved what a draft holds; None if nobody need.

        A rehearsal sends nothing, and asks nobody.

        :param new: what the draft is made from; None if another task makes it.
        """
        if not self.require_approval or client.settings.rehearses:
            return None
        response, facts = self._response(context), self.pull_facts(context) if new is None else []
        api_key = client.settings.transfer_api_key

        def is_approved(draft: Transfer, files: Mapping[str, str], superseded: Sequence[str]) -> bool:
            if new:
                content = DraftContent.of(new, api_key, draft, files, superseded)
            else:
                content = DraftContent.of_facts(facts, draft, superseded)
            code, url = content.code(api_key), client.settings.transfer_url(draft.id)
            self._request = ApprovalRequest.about(content, code, url, shows_recipients=shows_recipients())
            if not isinstance(response, Approval) or response.code != code:
                return False
            self._store_proof(context, draft.id, response)
            return True

        return is_approved

    def check_not_rejected(self, context: Context, discard: Callable[[], bool]) -> None:
        """Discard the draft and end the task if a person has rejected the send, in whatever try, or nobody responded.

        :param discard: discards the draft, and returns False if it was sent.
        :raises AirflowSkipException, AirflowFailException: it is so.
        """
        response = self._not_approved or (self._response(context) if self.require_approval else None)
        if not isinstance(response, NotApproved):
            return
        if not discard():
            raise AirflowFailException(
                f"Its send was not approved ({response.reason}), and it was sent by somebody else, or may have been. "
                "Look in the service's web application"
            )
        text = f"Nothing is sent: {response.reason}"
        is_rejected = response.is_rejected or (response.is_late and self.on_approval_timeout == "reject")
        raise AirflowSkipException(text) if is_rejected and not self.fail_on_reject else AirflowFailException(text)

    def _response(self, context: Context) -> Approval | NotApproved | None:
        """Return what a person has chosen since the last clear; None if nobody has."""
        from outbound_transfer.delivery.memory_store import state_store
        from outbound_transfer.tasks.waiting import stored_since_clear

        stored = stored_since_clear(state_store(context), _STATE_KEY, context)
        if not stored:
            return None
        if "code" in stored["response"]:
            return msgspec.convert(stored["response"], Approval)
        return msgspec.convert(stored["response"], NotApproved)

    def _store_proof(self, context: Context, draft_id: str, approval: Approval) -> None:
        """Store which approval a draft is sent with, before it is."""
        from outbound_transfer.delivery.memory_store import state_store

        proof = {"transfer_id": draft_id, "code": approval.code, "by": approval.by, "at": approval.at}
        if self._proof != proof:
            self._proof = proof
            state_store(context).set(_PROOF_KEY, proof, retention=NEVER_EXPIRE)

    def defer_for(self, request: DeferRequested, context: Context) -> NoReturn:
        if not isinstance(request, ApprovalRequired):
            super().defer_for(request, context)
        from outbound_transfer.delivery.memory_store import state_store

        shown, url = self._request, required_actions_url(context)
        assert shown is not None, "the draft was looked at"
        # Nothing was sent with an earlier approval, and whoever sends it now has not been approved.
        state_store(context).set(_PROOF_KEY, {}, retention=NEVER_EXPIRE)
        self.request_input(context, shown.subject, shown.body, shown.options, to_items(self.approval_assigned_users))
        approval = {"subject": shown.subject, "body": shown.body, "url": url}
        call_notifiers(to_items(self.approval_notifiers), {**context, "approval": approval}, self.log)
        self.log.info("Waiting for a person to approve the send, without a worker: %s", url)
        arguments = {"code": shown.code}
        await_response(self, context, shown.options, self.approval_timeout, "resume_after_response", arguments)

    def resume_after_response(self, context: Context, event: Any = None, *, code: str = "") -> Any:
        """Continue with a person's response: send, or discard the draft."""
        from outbound_transfer.delivery.memory_store import state_store
        from outbound_transfer.tasks.waiting import store_until_clear

        response = parse_response(event, code, to_items(self.approval_assigned_users))
        if isinstance(response, Approval) or response.is_rejected or response.is_late:
            # A retry neither asks again, nor forgets a rejection.
            store_until_clear(state_store(context), _STATE_KEY, context, response=to_builtins(response))
        if isinstance(response, NotApproved):
            self._not_approved = response
        self.log.info("%s", f"Approved by {response.by}" if isinstance(response, Approval) else response.reason)
        return self.resume(context)

    def publish_proof(
        self, context: Context, transfer: Transfer, memory: Memory | None = None, security: str | None = None
    ) -> None:
        """Store who has approved the send, for tasks downstream and the ledger, and write the receipt.

        :param memory, security: see :meth:`.write_receipt`.
        """
        from outbound_transfer.delivery.memory_store import state_store

        proof: Any = state_store(context).get(_PROOF_KEY, default=None) if self.require_approval else None
        if proof and proof["transfer_id"] == transfer.id:
            context["ti"].xcom_push(APPROVAL_KEY, proof)
            self.recorder.record_approval(transfer.id, proof["by"], proof["at"])
        self.write_receipt(context, transfer, memory, security)


def _is_user(user: Mapping[Any, Any]) -> bool:
    return user.keys() == {"id", "name"} and all(isinstance(value, str) and value for value in user.values())
