"""Approve a draft: a person decides about the files that it holds, and only those are sent.

A draft's subject, message, recipients and security never change, so its id stands for them; a file's id is new at each
upload. The option that a person chooses names both, as Airflow up to 3.3 goes on showing a task's first request
(apache/airflow#73235). The answer stands in the draft's row, where each send looks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from outbound_transfer.client.errors import AlreadyDelivered, DraftChanged, DraftInUse, WrongTransfer
from outbound_transfer.delivery.attempt import StaleTry
from outbound_transfer.delivery.check import is_of, require_file_list, require_no_twin
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.row import AGAIN, Approval, require_draft

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.attempt import Attempt
    from outbound_transfer.delivery.row import Memory, Row

APPROVED, REJECTED = "approved", "rejected"


def ask(client: Client, row: Row, transfer_id: str, attempt: Attempt) -> Transfer | Approval:
    """Store that a person is asked, before anything else: from then on, no send begins without an answer.

    :return: the draft, to show it; or the answer that an earlier attempt has stored.
    :raises AlreadyDelivered: the transfer was sent without being approved; or another task of the run sends the same.
    :raises DraftChanged: the draft was replaced, or does not hold the files that were attached.
    :raises DraftInUse: a send is under way, or in doubt; or a task that attaches files is at work.
    :raises WrongTransfer: the API key does not show the draft.
    """
    asked = attempt.asked_since_clear

    def asking(memory: Memory) -> Memory:
        require_draft(memory, transfer_id, Phase.HANDED_ON, Phase.SENDING)
        before = memory.approval
        is_same = before is not None and before.asked == asked and before.shown == memory.shown()
        return memory if memory.phase is Phase.SENDING or is_same else replace(memory, approval=Approval(asked))

    attempt.check_still_running()
    memory = row.change(asking)
    transfer = client.find_transfer(transfer_id)
    if transfer is None or not is_of(memory, transfer):
        raise WrongTransfer(
            f"The service does not show draft {transfer_id}: it was removed, or the connection has another user's API "
            f"key. {AGAIN}"
        )
    if not transfer.is_draft:
        return _approval_of_sent(memory)
    _require_complete(memory, transfer)
    require_no_twin(attempt, row)
    return memory.approval if memory.approval and memory.approval.state else transfer


def _approval_of_sent(memory: Memory) -> Approval:
    approval = memory.approval
    if approval and approval.state == APPROVED and approval.shown == memory.shown():
        return approval
    raise AlreadyDelivered(f"Transfer {memory.transfer_id} was sent before anybody approved it. Nobody is asked.")


def _require_complete(memory: Memory, draft: Transfer) -> None:
    """Check that a draft is what its row says, and that nobody is at work on it."""
    if memory.phase is Phase.SENDING:
        raise DraftInUse(f"A send of draft {draft.id} is under way, or in doubt: nobody is asked about it")
    require_file_list(draft)
    _require_closed(memory)
    if (held := {file.name: file.id for file in draft.files or ()}) != memory.files():
        raise DraftChanged(
            f"Draft {draft.id} holds {sorted(held)}, which are not the files that were attached. {AGAIN}"
        )


def options_of(memory: Memory) -> tuple[str, str]:
    """Return what a person may choose, about what the draft holds now: to approve it, and to reject it."""
    about = f"{memory.transfer_id} ({memory.shown()})"
    return f"Approve {about}", f"Reject {about}"


def mark_shown(row: Row, transfer_id: str, attempt: Attempt) -> None:
    """Store which files Airflow shows to people: a retry that finds their answer may take it up."""

    def marked(memory: Memory) -> Memory:
        require_draft(memory, transfer_id, Phase.HANDED_ON)
        return replace(memory, approval=replace(_own(memory, attempt), shown=memory.shown()))

    row.change(marked)


def answer(row: Row, transfer_id: str, attempt: Attempt, option: str, by: str, at: str) -> Approval:
    """Store what a person has chosen.

    :raises DraftChanged: the draft was replaced, or the choice is about other files than it holds now.
    :raises DraftInUse: a task that attaches files is at work.
    :raises StaleTry: the task was cleared since, so it asks again.
    """

    def answered(memory: Memory) -> Memory:
        require_draft(memory, transfer_id, Phase.HANDED_ON)
        _own(memory, attempt)
        _require_closed(memory)
        if option not in (options := options_of(memory)):
            raise DraftChanged(
                f"{by} chose '{option}', which is about other files than draft {transfer_id} holds now. Nothing is "
                "sent. Clear this task to ask again; as Airflow up to 3.3 goes on showing the first request of a task, "
                "trigger a new DAG run there"
            )
        state = APPROVED if option == options[0] else REJECTED
        return replace(memory, approval=Approval(attempt.asked_since_clear, state, memory.shown(), by, at))

    approval = row.change(answered).approval
    assert approval
    return approval


def withdraw(row: Row, transfer_id: str, attempt: Attempt) -> None:
    """Store that no answer is awaited; the draft is sent only after somebody is asked again and approves it."""

    def withdrawn(memory: Memory) -> Memory:
        require_draft(memory, transfer_id, Phase.HANDED_ON)
        _own(memory, attempt)
        return replace(memory, approval=Approval())

    row.change(withdrawn)


def require_approved(memory: Memory) -> None:
    """Check before a send that what the draft holds was approved, if anybody ever had to approve it.

    :raises DraftChanged: it was rejected; or something else was approved; or nobody was asked.
    :raises DraftInUse: nobody has answered yet.
    """
    approval = memory.approval
    if approval is None or (approval.state == APPROVED and approval.shown == memory.shown()):
        return
    if approval.is_waiting:
        raise DraftInUse(f"Nobody has approved or rejected draft {memory.transfer_id} yet. Nothing is sent until then")
    if approval.state == REJECTED:
        raise DraftChanged(f"{approval.by} rejected draft {memory.transfer_id}. Nothing is sent.")
    raise DraftChanged(
        f"The files of draft {memory.transfer_id} are not approved. Nothing is sent: clear the task that asks for the "
        "approval, and this one"
    )


def _own(memory: Memory, attempt: Attempt) -> Approval:
    if memory.approval is None or memory.approval.asked != attempt.asked_since_clear:
        raise StaleTry("This task was cleared since, and asks again: this attempt stops")
    return memory.approval


def _require_closed(memory: Memory) -> None:
    if memory.files() is None:
        raise DraftInUse(f"A task that attaches files to draft {memory.transfer_id} is at work, or has failed")
