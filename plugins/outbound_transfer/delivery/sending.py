"""Send a draft, or delete it, if it is what its row says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outbound_transfer.client.errors import (
    AlreadyDelivered,
    CallError,
    DraftChanged,
    DraftInUse,
    Rehearsed,
    WrongTransfer,
)
from outbound_transfer.client.models import Discarded
from outbound_transfer.delivery.attempt import LEFT_OUT
from outbound_transfer.delivery.check import check_sent, is_of, require_file_list
from outbound_transfer.delivery.decision import UNSENT, Phase, Seen
from outbound_transfer.delivery.digests import matches
from outbound_transfer.delivery.row import AGAIN, Memory, Row, describe, require_draft

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.attempt import Attempt

log = logging.getLogger(__name__)


def send_in_doubt_warning(transfer_id: str) -> str:
    """Return the warning for a send that may have been applied."""
    return f"Transfer {transfer_id} may nevertheless have been sent; the next attempt checks before it sends."


class Sending:
    """The attempts of one process to send a draft, whose row it has claimed. The service sends it once.

    :param draft: as this process has just filled it, so that the first attempt need not read it; None to read it.
    :param check: called before each attempt, once the draft was read.
    :ivar has_sent: whether this process has sent it.
    """

    def __init__(
        self,
        client: Client,
        row: Row,
        attempt: Attempt,
        *,
        draft: Transfer | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._client, self._row, self._attempt = client, row, attempt
        self._draft, self._check = draft, check
        self._is_in_doubt = row.memory.phase is Phase.SENDING
        self.has_sent = False

    def send(self) -> Transfer:
        """Send the draft, and return what the service says of it; or return the transfer that it became before.

        :raises DraftChanged: the draft was replaced, or does not hold the files that were attached.
        :raises DraftInUse: a task that attaches files is at work.
        :raises AlreadyDelivered: another task of the run has sent the same; or the service does not show it any more.
        :raises Rehearsed: the connection rehearses, or did when the draft was made.
        :raises StaleTry, TaskNotRunning: another attempt decides now.
        :raises WrongTransfer: what was sent is not what was meant.
        """
        transfer_id = self._row.memory.transfer_id
        transfer = self._client.retry("send", lambda: self._send_once(transfer_id))
        check_sent(self._row.memory, transfer)
        return transfer

    def _send_once(self, transfer_id: str) -> Transfer:
        if sent := self._begin(transfer_id):
            return sent
        log.info("Sending transfer '%s'", transfer_id)
        try:
            transfer = self._client.send_once(transfer_id)
        except CallError as error:
            self._is_in_doubt |= error.in_doubt
            if self._is_in_doubt:
                error.in_doubt_warning = send_in_doubt_warning(transfer_id)
            else:  # only now may others change its files
                self._row.save(phase=Phase.HANDED_ON)
            raise
        self.has_sent = True
        return transfer

    def _begin(self, transfer_id: str) -> Transfer | None:
        """Store that a send begins, if the draft is what the row says, and the row does not change meanwhile.

        :return: the transfer, if it was sent before.
        """
        while True:
            self._attempt.check_still_running()
            version, memory = self._row.read()
            self._row.check_own(memory)
            require_draft(memory, transfer_id, Phase.HANDED_ON, Phase.SENDING)
            transfer = self._draft or self._read(transfer_id)
            if not transfer.is_draft:
                if self._row.put(version, replace(memory, phase=Phase.SENDING)):
                    return transfer
                continue
            self._check()
            memory = self._without_skipped(memory)
            self._require_meant(memory, transfer)
            if memory.is_rehearsal:
                raise Rehearsed("The draft was made by a rehearsal: it is not sent")
            self._client.check_sends()
            if self._row.put(version, replace(memory, phase=Phase.SENDING)):
                self._draft = None  # the next attempt has waited
                self._require_no_twin()
                return None

    def _read(self, transfer_id: str) -> Transfer:
        seen, transfer = look(self._client, self._row.memory)
        if transfer is None:
            _require_gone(self._row.memory, seen)
            raise AlreadyDelivered(f"The service does not show transfer {transfer_id} any more. {AGAIN}")
        if seen in (Seen.GONE, Seen.ELSEWHERE):
            raise DraftChanged(
                f"Under the id {transfer_id} is another transfer now, to other recipients or with another subject. "
                f"{AGAIN}"
            )
        require_file_list(transfer)
        return transfer

    def _without_skipped(self, memory: Memory) -> Memory:
        """Leave out the entries of tasks that attached files to an earlier draft, and are skipped this time, or gone.

        :raises DraftInUse: a task that attaches files has not finished.
        :raises DraftChanged: it has failed for good.
        """
        waiting = {who: entry for who, entry in memory.entries.items() if entry.is_open}
        for who, entry in waiting.items():
            state = self._attempt.state_of(who) if who else None
            if who and state in LEFT_OUT and not entry.files:
                memory = replace(memory, entries={name: each for name, each in memory.entries.items() if name != who})
            elif not who:  # this task has closed it: the row is an older copy
                raise DraftChanged(f"The row of draft {memory.transfer_id} was restored to an older copy. {AGAIN}")
            elif state in ("failed", "upstream_failed"):
                raise DraftChanged(
                    f"The {describe(who)}, which attaches files to draft {memory.transfer_id}, has failed. Nothing is "
                    "sent: clear it, and this task"
                )
            else:
                raise DraftInUse(
                    f"The {describe(who)} ({state or 'not started'}) has not finished attaching files to draft "
                    f"{memory.transfer_id}. Nothing is sent until it has"
                )
        return memory

    @staticmethod
    def _require_meant(memory: Memory, draft: Transfer) -> None:
        meant, held = memory.files(), {file.name: file.id for file in draft.files or ()}
        if held != meant:
            raise DraftChanged(
                f"Draft {draft.id} holds {sorted(held)}, which are not the files that were attached to it: "
                f"{sorted(meant or ())}. {AGAIN}"
            )

    def _require_no_twin(self) -> None:
        """After it is stored that a send begins: of two that begin at once, at least one sees the other."""
        if not self._attempt.may_have_twins or self._row.is_keyed:
            return
        if twin := self._row.find_twin(self._attempt.run_of_twins):
            if not self._is_in_doubt:
                self._row.save(phase=Phase.HANDED_ON)
            raise AlreadyDelivered(
                f"Transfer {twin}, which another task or index of this run has sent, or is sending, has the same "
                "subject, recipients and files. Nothing is sent. If this is another delivery, give each of them a "
                "delivery_key, or trigger a new DAG run"
            )


def look(client: Client, memory: Memory) -> tuple[Seen, Transfer | None]:
    """Read the row's transfer: whether it is still the one of the row, and what the service returned for its id."""
    settings = client.settings
    if memory.account != settings.account:
        return Seen.ELSEWHERE, None
    transfer = client.find_transfer(memory.transfer_id)
    if transfer and is_of(memory, transfer):
        return Seen.DRAFT if transfer.is_draft else Seen.SENT, transfer
    has_same_key = matches(memory.key_check, "key", settings.transfer_api_key)
    return Seen.GONE if has_same_key else Seen.ELSEWHERE, transfer


def _require_gone(memory: Memory, seen: Seen) -> None:
    """Check that a transfer that the service does not show was removed unsent.

    :raises WrongTransfer: it may still be there, under another key.
    :raises AlreadyDelivered: it may have been sent before it was removed.
    """
    if seen is Seen.ELSEWHERE:
        doubt = "" if memory.phase in UNSENT else "It may have been sent. "
        raise WrongTransfer(
            f"The service does not show transfer {memory.transfer_id}: it was removed, or the connection has another "
            f"user's API key. {doubt}Nothing is done with it. Correct the connection."
        )
    if memory.phase is Phase.SENDING:
        raise AlreadyDelivered(
            f"Transfer {memory.transfer_id} may have been sent, and the service does not show it any more. Look in its "
            "web application"
        )


def discard(client: Client, row: Row) -> Discarded:
    """Delete the draft of a row that this attempt has claimed, after it has read it.

    :raises AlreadyDelivered: it may have been sent, and the service does not show it any more.
    :raises WrongTransfer: under its id is another transfer; or it may be that of another API key.
    """
    memory = row.memory
    seen, transfer = look(client, memory)
    if transfer is None:
        _require_gone(memory, seen)
        row.save(Memory.emptied)
        return Discarded.NOT_FOUND
    if seen in (Seen.GONE, Seen.ELSEWHERE):
        raise WrongTransfer(
            f"Under the id {transfer.id} is another transfer now, to other recipients or with another subject. Nothing "
            "is done with it."
        )
    if seen is Seen.SENT:
        row.save(phase=Phase.SENDING)
        return Discarded.SENT
    return delete_draft(client, row)


def delete_draft(client: Client, row: Row) -> Discarded:
    """Delete what this attempt has read as a draft, or has made."""
    transfer_id = row.save(phase=Phase.DISCARDING).transfer_id
    outcome = client.discard_transfer(transfer_id)
    if outcome is Discarded.SENT:
        row.save(phase=Phase.SENDING)
    else:
        row.save(Memory.emptied)
    return outcome
