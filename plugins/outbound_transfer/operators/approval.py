"""Approve a delivery: a person reviews a draft's contents and decides whether it is sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Unpack

from airflow.providers.standard.operators.hitl import HITLOperator

from outbound_transfer.airflow_compat import names
from outbound_transfer.airflow_compat.human_input import TAKES_RESPONSE_TIMEOUT, request_input, wait_again
from outbound_transfer.client.errors import DraftChanged, InvalidDelivery
from outbound_transfer.operators.arguments import TRANSFER_ID_CHECK, Check, check_all, resolve_transfer_id
from outbound_transfer.operators.base import DEFAULT_CONN_ID, OutboundTransferOperator
from outbound_transfer.operators.draft import row_of
from outbound_transfer.store.rows import read_event_time
from outbound_transfer.wording import clean, pluralize

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.attempt import Attempt
    from outbound_transfer.delivery.row import Approval, Memory, Row
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.operators.arguments import TransferId
    from outbound_transfer.operators.task_arguments import TaskArguments

MAX_LISTED: Final = 50  # files in a request
_TIME_TO_SEND: Final = timedelta(hours=1)  # before a draft expires, to send it once it is approved


def _check_timeout(timeout: Any) -> None:
    if not isinstance(timeout, timedelta) or timeout <= timedelta():
        raise InvalidDelivery(f"response_timeout must be a timedelta over 0, not {timeout!r:.100}")


class ApproveTransferOperator(OutboundTransferOperator, HITLOperator):
    """Ask a person to approve a draft, and wait for the answer without a worker.

    Under "Required actions", the person sees the subject, recipients, security option, message and files with their
    digests. :class:`.SendTransferOperator` sends exactly what was approved. A rejection skips the tasks after this
    one; the draft stays unsent until it is discarded. A retry does not ask again; a clear does.

    :param transfer_id: the draft: its id, or the result of a task that delivers with ``send=False``.
    :param notifiers: called before the wait, with ``approval`` in the context: the ``subject``, the ``body`` (Markdown)
        and the ``url`` of the page for the answer, empty without ``[api] base_url``. A failing notifier is logged.
    :param assigned_users: the Airflow users who may answer, as mappings with ``id`` and ``name``; by default, every
        user who may answer the Dag's required actions.
    :param response_timeout: how long to wait for an answer, at the latest until an hour before the draft expires.
    :param outbound_transfer_conn_id: the Airflow connection.
    :return: a mapping with ``transfer_id``, ``state`` (``approved``), ``by`` (the Airflow user's name), ``at`` (ISO
        8601) and ``files``, a twelve-digit fingerprint of the files.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", "transfer_id")
    checks = (TRANSFER_ID_CHECK, Check(("response_timeout",), _check_timeout))
    owns_delivery = False

    _event: Mapping[str, Any] | None = None  # the event with which Airflow resumes the task

    def __init__(
        self,
        *,
        transfer_id: TransferId,
        notifiers: Sequence[BaseNotifier] | BaseNotifier = (),
        assigned_users: HITLUser | list[HITLUser] | None = None,
        response_timeout: timedelta = timedelta(days=7),
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        timeout: Any = {"response_timeout": response_timeout} if TAKES_RESPONSE_TIMEOUT else {}
        super().__init__(
            subject="Send a transfer?",  # replaced when the task runs, as are the options
            options=["Approve", "Reject"],
            defaults=None,  # ignores default_args that are meant for other requests
            multiple=False,
            notifiers=notifiers,
            assigned_users=assigned_users,
            outbound_transfer_conn_id=outbound_transfer_conn_id,
            **timeout,
            **kwargs,
        )
        self.response_timeout = response_timeout
        self.transfer_id = transfer_id
        self.check_when_parsed()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Store the answer, and end the task accordingly."""
        self._event = event
        return self._run(context)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        from outbound_transfer.delivery import approve
        from outbound_transfer.delivery.row import Approval

        check_all(self, self.checks)
        client, attempt, transfer_id = hook.get_conn(), self.attempt(context), resolve_transfer_id(self.transfer_id)
        row, event = row_of(client, context, transfer_id), self._event
        if event is None:
            before = row.read()[1]
            if client.settings.rehearses or before.is_rehearsal:
                self.log.warning("Rehearsal: nothing will be sent, so nobody is asked")
                return _result(transfer_id, Approval(shown=before.shown()))
            asked = approve.ask(client, row, transfer_id, attempt)
            if isinstance(asked, Approval):
                return self._end(asked, transfer_id)
            event = self._ask(asked, row, attempt, context)
        return self._end(self._answer(row, transfer_id, attempt, event), transfer_id)

    def _ask(self, draft: Transfer, row: Row, attempt: Attempt, context: Context) -> dict[str, Any]:
        """Show the draft's contents, and wait for an answer; see :func:`.request_input`.

        :raises DraftChanged: the draft expires too soon.
        """
        from outbound_transfer.delivery import approve

        if expires_at := read_event_time(draft.expires_at):
            left = expires_at - names.timezone.utcnow() - _TIME_TO_SEND
            if left <= timedelta():
                raise DraftChanged(f"Draft {draft.id} expires at {draft.expires_at}, too soon to ask for approval")
            assert self.response_timeout is not None
            self.response_timeout = min(self.response_timeout, left)
        self.options = list(approve.options_of(row.memory))
        if row.memory.approval and row.memory.approval.shown:  # an earlier attempt died, perhaps with the answer
            return wait_again(self, context)
        people = pluralize(len(draft.recipients), "recipient")
        self.subject = f"Send '{clean(draft.subject)}' to {people}?"
        self.body = describe_draft(draft, row.memory)
        self._notify(context)
        try:
            return request_input(self, context)
        except (names.TaskAwaitingInput, names.TaskDeferred):
            approve.mark_shown(row, draft.id, attempt)
            raise

    def _notify(self, context: Context) -> None:
        """Call the notifiers before a person can answer: no answer may arrive while the task is running."""
        notifiers, self.notifiers, url = self.notifiers, [], ""
        with suppress(ValueError):  # the URL of Airflow's UI is not configured
            url = self.generate_link_to_ui(task_instance=context["ti"])
        approval = {"subject": self.subject, "body": self.body, "url": url}
        for notifier in notifiers:
            try:
                notifier({**context, "approval": approval})
            except Exception:
                self.log.exception("A notifier failed; the wait for an answer begins anyway")

    def _answer(self, row: Row, transfer_id: str, attempt: Attempt, event: Mapping[str, Any]) -> Approval:
        """Store and return the answer; fail if there is none, the files changed, or the person may not answer."""
        from outbound_transfer.delivery import approve

        if "error" in event:
            approve.withdraw(row, transfer_id, attempt)
            is_late = event.get("error_type") == "timeout"
            reason = f"Nobody answered within {self.response_timeout}" if is_late else clean(event["error"])
            raise names.AirflowFailException(f"{reason}. Draft {transfer_id} is not sent; clear this task to ask again")
        user, at = event.get("responded_by_user") or {}, event["responded_at"]
        by = clean(user.get("name") or user.get("id") or "an unknown user")
        if user and self.assigned_users and user.get("id") not in {each["id"] for each in self.assigned_users}:
            raise names.AirflowFailException(
                f"{by} answered but is not one of assigned_users. Clear this task to ask again"
            )
        option, when = event["chosen_options"][0], at.isoformat() if isinstance(at, datetime) else str(at)
        try:
            return approve.answer(row, transfer_id, attempt, option, by, when)
        except DraftChanged as error:  # a retry would ask about a draft that Airflow may not show
            raise names.AirflowFailException(str(error)) from error

    def _end(self, approval: Approval, transfer_id: str) -> dict[str, Any]:
        if approval.state == "rejected":
            raise names.AirflowSkipException(f"{approval.by} rejected draft {transfer_id}: nothing is sent")
        self.log.info("%s approved sending draft %s", approval.by, transfer_id)
        return _result(transfer_id, approval)


def _result(transfer_id: str, given: Approval) -> dict[str, Any]:
    return {"transfer_id": transfer_id, "state": given.state, "by": given.by, "at": given.at, "files": given.shown}


def describe_draft(draft: Transfer, memory: Memory) -> str:
    """Return a draft's contents as Markdown. Untrusted strings are shown as code, so that they are shown verbatim."""
    from outbound_transfer.store.config import stores_recipients

    recipients = draft.recipients if stores_recipients() else ()
    people = (f"{each.name} <{each.email}>" if each.name else each.email for each in recipients)
    parts = [
        f"**Subject:** {_code(draft.subject)}",
        "\n- ".join([f"**To {pluralize(len(draft.recipients), 'recipient')}**", *map(_code, people)]),
        f"**Security:** {_code(memory.security) if memory.security else 'the account default'}",
        "**Message:**" if draft.message else "",
        # Airflow shows a code block as one line.
        "\n>\n".join(f"> {_code(line)}" for line in (draft.message or "").splitlines() if line.strip()),
        "\n".join(_files(memory)),
        f"Draft {_code(draft.id)}. Nothing is sent yet.",
    ]
    return "\n\n".join(filter(None, parts))


def _files(memory: Memory) -> Iterator[str]:
    """Yield the files as a table; if there are many, their number, size, and the digest of a ``sha256sum`` list."""
    files = sorted(memory.held.items())
    if len(files) <= MAX_LISTED:
        yield from ("| File | Bytes | SHA-256 |", "| --- | --- | --- |")
        for name, held in files:
            # In a table, a bar must be escaped even within code.
            yield f"| {_code(name).replace('|', chr(92) + '|')} | {held.size:,} | {held.sha256} |"
        return
    listed = "".join(f"{held.sha256}  {name}\n" for name, held in files)
    digest = hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest()
    yield f"**{len(files):,} files**, {sum(held.size for _, held in files):,} bytes"
    yield f"\nSHA-256 of the list of their digests and names, as `sha256sum` writes it, sorted by name: {digest}"


def _code(text: str) -> str:
    """Return Markdown that shows a single-line string verbatim."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {clean(text, len(text))} {ticks}"
