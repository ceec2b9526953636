"""A draft that several tasks share: one creates it, others fill it, one sends it.

The task that creates it decides whether there may be another (:meth:`.Delivery.prepare`), and publishes what it made.
The others compare that, as an id alone does not identify a draft, and keep no second memory of the send: the id is the
token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outbound_transfer.airflow_compat.run_state import find_states, instance_name, iter_mappings
from outbound_transfer.client import Discarded
from outbound_transfer.delivery.check import require_file_list, require_meant
from outbound_transfer.delivery.decision import Reason
from outbound_transfer.delivery.memory import Likeness, Memory
from outbound_transfer.delivery.observer import DeliveryObserver
from outbound_transfer.delivery.search import SearchTarget, UnlikeTransfers, find_like
from outbound_transfer.delivery.sending import Sending
from outbound_transfer.delivery.task_facts import DISCARDED_KEY, MADE_KEY
from outbound_transfer.protocol.digests import matches
from outbound_transfer.protocol.errors import AlreadyDelivered, DraftChanged, NotFound, Rehearsed, WrongTransfer
from outbound_transfer.protocol.identity import identity_of
from outbound_transfer.protocol.models import to_builtins

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client import Client
    from outbound_transfer.delivery.task_facts import TaskFacts
    from outbound_transfer.protocol.models import File, Transfer

#: States of a task that was cleared, and is not going to attach anything to the draft that was made since.
_ATTACHES_NOTHING: Final = ("skipped", "removed")

#: The XCom of a task with the files that it has attached, and to which draft.
ATTACHED_KEY: Final = "outbound_transfer_attached"


class Made(msgspec.Struct, frozen=True):
    """What a task publishes of a transfer that it has made, for the tasks downstream and for other runs.

    :ivar identity: digest of the subject and the recipients; "" if it is not known.
    :ivar question: how alike a sent transfer must be to stop the send; None if nobody else can have sent it.
    :ivar delivery_key: under which other runs may have made it.
    :ivar made_by: the task instance that has made it.
    :ivar files: digests (SHA-256, in hexadecimal) of what was attached, by name.
    :ivar is_rehearsal: whether it is never sent, wherever the connection leads by then.
    """

    transfer_id: str
    account: str
    identity: str = ""
    question: Likeness | None = None
    delivery_key: str = ""
    is_rehearsal: bool = False
    made_by: str = ""
    files: dict[str, str] = {}

    @classmethod
    def of(cls, memory: Memory, *, is_rehearsal: bool = False) -> Made:
        return cls(
            memory.draft_id,
            memory.scope.account,
            memory.identity,
            memory.question,
            memory.scope.delivery_key,
            is_rehearsal=is_rehearsal,
            files={name: file.sha256 for name, file in memory.files.items()},
        )

    def publish(self, context: Context) -> None:
        """Store it as an XCom."""
        ti = context["ti"]
        made = msgspec.structs.replace(self, made_by=instance_name(ti.task_id, ti.map_index))
        ti.xcom_push(MADE_KEY, to_builtins(made))


class _AlreadySent(Exception):
    """Control flow: the transfer was sent before."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer


class SharedDraft:
    """A draft that another task made, as one try of a task works on it.

    :param upstream: ids of all tasks before this one.
    :raises WrongTransfer: the draft was made in another account than the connection leads to.
    :ivar may_be_sent: whether an attempt at the send may have been applied: of this try or, until it has read the
        draft, of an earlier one.
    :ivar has_sent: whether this try has sent it.
    """

    def __init__(
        self, client: Client, context: Context, facts: TaskFacts, transfer_id: str, upstream: Iterable[str]
    ) -> None:
        self.client, self.facts, self.transfer_id = client, facts, transfer_id
        self.account = client.settings.account
        self._ti, self._upstream = context["ti"], sorted(upstream)
        made = [msgspec.convert(one, Made) for one in self._pull(MADE_KEY)]
        self.made = next((one for one in made if one.identity), made[0] if made else Made(transfer_id, self.account))
        self._unlike = UnlikeTransfers()
        self._draft: Transfer | None = None
        #: Whether another index may have sent this one's item since its draft was made.
        self._may_have_moved = facts.is_mapped and (facts.is_resumed or not facts.is_first_of_all)
        self.may_be_sent, self.has_sent = facts.writer.try_number > 1 or facts.is_resumed, False
        self.check_account(self.made.account)

    def check_account(self, made_in: str) -> None:
        """Compare the account that the draft was made in with the connection's.

        :raises WrongTransfer: they differ: here the id may belong to another transfer.
        """
        if made_in != self.account:
            raise WrongTransfer(
                f"The connection leads to {self.account}, and led to {made_in} when the run began with transfer "
                f"{self.transfer_id}. Nothing is done here."
            )

    def _pull(self, key: str) -> list[Any]:
        return [one for one in self._pull_all(key) if one.get("transfer_id") == self.transfer_id]

    def _pull_all(self, key: str) -> list[Any]:
        return list(iter_mappings(self._ti.xcom_pull(task_ids=self._upstream, key=key))) if self._upstream else []

    def read(self) -> Transfer:
        """Retrieve the draft, or the transfer that it became.

        :raises WrongTransfer: it is not what the task upstream has made.
        """
        transfer = self.client.get_transfer(self.transfer_id)
        if self.made.identity and not matches(self.made.identity, identity_of(transfer)):
            raise WrongTransfer(
                f"Under the id {self.transfer_id} is another transfer now, to other recipients or with another "
                "subject. Nothing is done with it."
            )
        require_file_list(transfer)
        return transfer

    def publish_files(self, records: Iterable[File]) -> None:
        """Store what this task has attached, for the task that sends."""
        attached = {"transfer_id": self.transfer_id, "files": to_builtins(list(records))}
        by = instance_name(self._ti.task_id, self._ti.map_index)
        self._ti.xcom_push(ATTACHED_KEY, {**attached, "made_by": self.made.made_by, "by": by})

    def send(self, observer: DeliveryObserver) -> Transfer:
        """Send the draft, or return the transfer if it was sent before.

        :raises DraftChanged: its files are not those that the tasks upstream have attached.
        :raises WrongTransfer: what was sent is not what was meant.
        :raises AlreadyDelivered: its like was sent meanwhile.
        :raises TaskNotRunning: Airflow has given this try up.
        """
        sending = Sending(self.client, self.transfer_id, observer)
        try:
            transfer = sending.send(self._check_for_send)
        except _AlreadySent as sent:
            return sent.transfer
        except BaseException:
            self.may_be_sent |= sending.may_be_applied
            raise
        self.has_sent = True
        assert self._draft is not None, "it was read before the attempt"
        files = {file.name: file.size for file in self._draft.files or ()}
        is_meant = transfer.id == self.transfer_id and identity_of(transfer) == identity_of(self._draft)
        require_meant(transfer, self.transfer_id, files, is_meant=is_meant)
        return transfer

    def discard(self) -> Discarded:
        """Remove the draft, if it still is one.

        :raises WrongTransfer: it is not what the task upstream has made.
        """
        try:
            self.read()
        except NotFound:
            return Discarded.NOT_FOUND
        outcome = self.client.discard_transfer(self.transfer_id)
        self.may_be_sent = outcome is Discarded.SENT
        if outcome is Discarded.REMOVED:
            self._ti.xcom_push(DISCARDED_KEY, {"transfer_id": self.transfer_id, "account": self.account})
        return outcome

    def _check_for_send(self) -> None:
        """Ask again whatever may have changed since the last attempt, or since another task has worked on the draft."""
        transfer = self.read()
        if not transfer.is_draft:
            raise _AlreadySent(transfer)
        self.may_be_sent, self._draft = False, transfer
        self._check_files(transfer)
        question = self.made.question
        if self._may_have_moved:
            question = Likeness.EXACT.or_wider(question)
        self._may_have_moved = self.facts.is_mapped  # the next attempt has waited
        if question:
            self._fail_if_like_was_sent(transfer, question)
        self.facts.check_still_running()
        if self.made.is_rehearsal:
            raise Rehearsed("The draft was made by a rehearsal: it is not sent")

    def _check_files(self, draft: Transfer) -> None:
        attached = self._pull(ATTACHED_KEY)
        self._check_attaching_tasks()
        if not attached:  # they were attached in another way
            return
        meant = sorted((file["name"], file["id"], file["size"]) for one in attached for file in one["files"])
        held = sorted((file.name, file.id, file.size) for file in draft.files or ())
        if held != meant:
            raise DraftChanged(
                f"Draft {draft.id} holds {[name for name, *_ in held]}, which are not the files that the tasks "
                f"upstream have attached to it: {[name for name, *_ in meant]}. Nothing is sent; clear the task that "
                "creates the draft, and those after it"
            )

    def _check_attaching_tasks(self) -> None:
        """Check that what the tasks upstream say is about this draft: Airflow keeps what a skipped one said before."""
        made_by = self.made.made_by
        known = [one for one in self._pull_all(ATTACHED_KEY) if made_by and one.get("made_by") == made_by]
        states = find_states(self._ti, self._upstream) if known else {}
        for one in known:
            state, by = states.get(one["by"]), one["by"]
            is_of_this = one["transfer_id"] == self.transfer_id
            if (is_of_this and state != "success") or not (is_of_this or state in _ATTACHES_NOTHING):
                raise DraftChanged(
                    f"Task {by} has attached files to draft {one['transfer_id']}, and is {state} now: it is not known "
                    f"whether draft {self.transfer_id} is to be sent with them. Nothing is sent; clear the task that "
                    "creates the draft, and those after it"
                )

    def _fail_if_like_was_sent(self, draft: Transfer, likeness: Likeness) -> None:
        wanted = SearchTarget(identity_of(draft), {file.name: file.size for file in draft.files or ()})
        found = find_like(
            self.client,
            self.facts,
            self.account,
            wanted,
            likeness,
            unlike=self._unlike,
            known={draft.id},
        )
        if found:
            raise AlreadyDelivered(
                Reason.MAY_BE_SENT.value.format(transfer_id=found.id, another="trigger a new DAG run")
            )
