"""Send a draft, if it is what its row says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outbound_transfer.client.errors import AlreadyDelivered, CallError, DraftChanged, DraftInUse, Rehearsed
from outbound_transfer.client.models import Transfer
from outbound_transfer.delivery.approve import require_approved
from outbound_transfer.delivery.attempt import LEFT_OUT, describe
from outbound_transfer.delivery.check import check_sent, require_file_list, require_no_twin
from outbound_transfer.delivery.decision import Phase, Seen
from outbound_transfer.delivery.row import AGAIN, Memory, require_draft
from outbound_transfer.observability import metrics

if TYPE_CHECKING:
    from outbound_transfer.delivery.delivery import Delivery

log = logging.getLogger(__name__)


def send_in_doubt_warning(transfer_id: str) -> str:
    """Return the warning for a send that may have been applied."""
    return f"Transfer {transfer_id} may nevertheless have been sent; the next attempt checks before it sends."


class DraftOutdated(Exception):
    """Control flow, not an error: what the draft was made from has changed right before its send."""


class Sending:
    """The attempts of one process to send a draft, whose row it has claimed. The service sends it once.

    :param draft: as this process has just filled it, so that the first attempt need not read it; None to read it.
    :param is_outdated: called before each attempt, once the draft was read: whether to make another draft.
    """

    def __init__(self, delivery: Delivery, draft: Transfer | None, is_outdated: Callable[[], bool]) -> None:
        self._delivery, self._row, self._draft, self._is_outdated = delivery, delivery.row, draft, is_outdated
        self._transfer_id = delivery.memory.transfer_id
        self._is_in_doubt = delivery.memory.phase is Phase.SENDING
        self._has_sent = False

    def send(self) -> Transfer:
        """Send the draft, and return what the service says of it; or return the transfer that it became before.

        :raises DraftChanged: the draft was replaced, or does not hold the files that were attached.
        :raises DraftInUse: a task that attaches files is at work.
        :raises DraftOutdated: another draft is to be made.
        :raises AlreadyDelivered: another task of the run has sent the same; or the service no longer shows it.
        :raises Rehearsed: the connection rehearses, or did when the draft was made.
        :raises StaleTry, TaskNotRunning: another attempt decides now.
        :raises WrongTransfer: what was sent is not what was meant.
        """
        transfer = self._delivery.client.retry("send", self._send_once)
        check_sent(self._row.memory, transfer)
        if self._has_sent:
            metrics.DELIVERIES.emit(outcome="sent", conn_id=self._delivery.attempt.conn_id)
        return transfer

    def _send_once(self) -> Transfer:
        if sent := self._begin():
            return sent
        log.info("Sending transfer '%s'", self._transfer_id)
        try:
            transfer = self._delivery.client.send_once(self._transfer_id)
        except CallError as error:
            self._is_in_doubt |= error.in_doubt
            self._give_back()
            raise
        self._has_sent = True
        return transfer

    def _give_back(self) -> None:
        """Let others change the draft's files again, unless an attempt of any try may still send it."""
        if not self._is_in_doubt:
            self._row.save(phase=Phase.HANDED_ON)

    def _begin(self) -> Transfer | None:
        """Store that a send begins, if the draft is what the row says, and the row does not change meanwhile.

        :return: the transfer, if it was sent before.
        """
        while True:
            self._delivery.attempt.check_still_running()
            version, memory = self._row.read()
            self._row.check_own(memory)
            require_draft(memory, self._transfer_id, Phase.HANDED_ON, Phase.SENDING)
            transfer = self._draft or self._read()
            if not transfer.is_draft:
                return transfer
            if self._is_outdated():
                raise DraftOutdated
            memory = self._without_skipped(memory)
            self._require_meant(memory, transfer)
            self._delivery.client.check_sends()
            require_approved(memory)
            if self._row.put(version, replace(memory, phase=Phase.SENDING)):
                self._draft = None  # the next attempt has waited
                self._require_no_twin()
                return None

    def _read(self) -> Transfer:
        if (seen := self._delivery.look_here()) is Seen.GONE:
            self._delivery.settle(seen=seen)  # which refuses what may have been sent
            raise DraftChanged(f"The service does not show draft {self._transfer_id} any more. {AGAIN}")
        transfer = self._delivery.known()
        require_file_list(transfer)
        return transfer

    def _without_skipped(self, memory: Memory) -> Memory:
        """Leave out the entries of tasks that attached files to an earlier draft, and are skipped this time, or gone.

        :raises DraftInUse: a task that attaches files has not finished.
        :raises DraftChanged: it has failed for good.
        """
        entries = {who: entry for who, entry in memory.entries.items() if not entry.is_open}
        for who in memory.entries.keys() - entries.keys():
            state = self._delivery.attempt.state_of(who)
            if state in LEFT_OUT and not memory.entries[who].files:
                continue
            if state in ("failed", "upstream_failed"):
                raise DraftChanged(
                    f"The {describe(who)}, which attaches files to draft {memory.transfer_id}, has failed. Nothing is "
                    "sent: clear it, and this task"
                )
            raise DraftInUse(
                f"The {describe(who)} ({state or 'not started'}) has not finished attaching files to draft "
                f"{memory.transfer_id}. Nothing is sent until it has"
            )
        return replace(memory, entries=entries)

    @staticmethod
    def _require_meant(memory: Memory, draft: Transfer) -> None:
        meant, held = memory.files(), {file.name: file.id for file in draft.files or ()}
        if held != meant:
            raise DraftChanged(
                f"Draft {draft.id} holds {sorted(held)}, which are not the files that were attached to it: "
                f"{sorted(meant or ())}. {AGAIN}"
            )
        if memory.is_rehearsal:
            raise Rehearsed("The draft was made by a rehearsal: it is not sent")

    def _require_no_twin(self) -> None:
        """After it is stored that a send begins: of two that begin at once, at least one sees the other."""
        try:
            require_no_twin(self._delivery.attempt, self._row)
        except AlreadyDelivered:
            self._give_back()
            raise
