"""The send of a draft, attempt by attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from outbound_transfer.protocol.errors import CallError

if TYPE_CHECKING:
    from outbound_transfer.client import Client
    from outbound_transfer.delivery.observer import DeliveryObserver
    from outbound_transfer.protocol.models import Transfer

log = logging.getLogger(__name__)


def send_in_doubt_warning(transfer_id: str) -> str:
    """Return the warning for a send that may have been applied."""
    return f"Transfer {transfer_id} may nevertheless have been sent; the next attempt checks before it sends."


class Sending:
    """The attempts of one process to send a draft. The service sends it once, however many there are.

    :ivar may_be_applied: whether a request was made that was not refused: it was applied, or may be.
    """

    def __init__(self, client: Client, transfer_id: str, observer: DeliveryObserver) -> None:
        self._client, self._id, self._observer = client, transfer_id, observer
        self.may_be_applied = self._was_in_doubt = False

    def send(self, before_attempt: Callable[[], object]) -> Transfer:
        """Send the draft.

        :param before_attempt: called before each attempt; what it raises ends the send.
        :return: the sent transfer, also if it was sent before.
        """
        return self._client.retry("send", lambda: self._attempt(before_attempt))

    def _attempt(self, before_attempt: Callable[[], object]) -> Transfer:
        before_attempt()
        self._client.check_sends()
        log.info("Sending transfer '%s'", self._id)
        self.may_be_applied = True  # from now on, also after an interrupt
        self._observer.record_send(self._id, in_doubt=True)
        try:
            return self._client.send_once(self._id)
        except CallError as error:
            self._was_in_doubt |= error.in_doubt
            error.was_in_doubt = self._was_in_doubt
            if self._was_in_doubt:
                error.in_doubt_warning = send_in_doubt_warning(self._id)
            else:
                self.may_be_applied = False
                self._observer.record_send(self._id, in_doubt=False)
            raise
