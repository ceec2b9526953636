"""Approve a draft: a person decides about the files that it holds, and only those are sent.

A draft's subject, message, recipients and security never change, so its id stands for them; a file's id is new at each
upload. The option that a person chooses names both, as Airflow up to 3.3 keeps showing a task's first request
(apache/airflow#73235). The answer is stored in the draft's row, where each send looks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outbound_transfer.client.errors import AlreadyDelivered, DraftChanged, DraftInUse, WrongTransfer
from outbound_transfer.delivery.attempt import StaleTry
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.draft import require_attached, require_closed, without_skipped
from outbound_transfer.delivery.row import AGAIN, APPROVED, REJECTED, Approval, is_of, require_draft

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.attempt import Attempt
    from outbound_transfer.delivery.row import Memory, Row


def ask(client: Client, row: Row, transfer_id: str, attempt: Attempt) -> Transfer | Approval:
    """Store that a person is asked, before anything else: from then on, no send begins without an answer.

    :return: the draft, to show it; or the answer that an earlier attempt has stored.
    """
    asked = attempt.by.asked

    def asking(memory: Memory) -> Memory:
        require_draft(memory, transfer_id, Phase.HANDED_ON, Phase.SENDING)
        before = memory.approval
        is_same = before is not None and before.asked == asked and before.shown == memory.shown()
        return memory if memory.phase is Phase.SENDING or is_same else replace(memory, approval=Approval(asked))

    attempt.check_still_running()
    memory = row.change(asking)
    transfer, approval = client.find_transfer(transfer_id), memory.approval
    if transfer is None or not is_of(memory, transfer):
        raise WrongTransfer(
            f"The service does not show draft {transfer_id}: it was removed, or the connection has another user's API "
            f"key. {AGAIN}"
        )
    if not transfer.is_draft:
        if approval and memory.is_approved:
            return approval
        raise AlreadyDelivered(f"Transfer {transfer_id} was sent before anybody approved it. Nobody is asked.")
    if memory.phase is Phase.SENDING:
        raise DraftInUse(f"A send of draft {transfer_id} is under way or in doubt, so nobody is asked about it")
    require_attached(row.change(lambda each: without_skipped(each, attempt)), transfer)
    row.require_no_twin(attempt)
    return approval if approval and approval.state else transfer


def options_of(memory: Memory) -> tuple[str, str]:
    """Return a person's two options: to approve what the draft holds now, and to reject it."""
    about = f"{memory.transfer_id} ({memory.shown()})"
    return f"Approve {about}", f"Reject {about}"


def mark_shown(row: Row, transfer_id: str, attempt: Attempt) -> None:
    """Store which files Airflow shows to people: a retry that finds their answer may use it."""
    _change(row, transfer_id, attempt, lambda memory, before: replace(before, shown=memory.shown()))


def answer(row: Row, transfer_id: str, attempt: Attempt, option: str, by: str, at: str) -> Approval:
    """Store a person's choice, if it is about the files that the draft holds now."""

    def answered(memory: Memory, before: Approval) -> Approval:
        require_closed(memory)
        if option not in (options := options_of(memory)):
            raise DraftChanged(
                f"{by} chose '{option}', but the files of draft {transfer_id} have changed since. Nothing is "
                "sent. Clear this task to ask again; Airflow up to 3.3 keeps showing a task's first request, so "
                "trigger a new Dag run there"
            )
        return Approval(before.asked, APPROVED if option == options[0] else REJECTED, memory.shown(), by, at)

    return _change(row, transfer_id, attempt, answered)


def withdraw(row: Row, transfer_id: str, attempt: Attempt) -> None:
    """Store that no answer is awaited; the draft is sent only after somebody is asked again and approves it."""
    _change(row, transfer_id, attempt, lambda *_: Approval())


def _change(row: Row, transfer_id: str, attempt: Attempt, change: Callable[[Memory, Approval], Approval]) -> Approval:
    """Change the approval that this task has asked for; return it."""

    def changed(memory: Memory) -> Memory:
        require_draft(memory, transfer_id, Phase.HANDED_ON)
        if memory.approval is None or memory.approval.asked != attempt.by.asked:
            raise StaleTry("This task has since been cleared and asks again, so this attempt stops")
        return replace(memory, approval=change(memory, memory.approval))

    return row.change(changed).approval or Approval()
