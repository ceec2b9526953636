"""Interface through which a delivery reports its steps; the ledger implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbound_transfer.protocol.models import Transfer


class DeliveryObserver:
    """Is notified of each step of a delivery; this one ignores them. A method of an observer never raises."""

    def set_current(self, transfer_id: str) -> None:
        """Called when the task starts to work on a transfer: an error from now on is this delivery's."""

    def record_transfer(self, transfer: Transfer, *, recipients: int | None = None) -> None:
        """Called when the service returned a transfer.

        :param recipients: the number of recipients, if ``transfer`` does not have them.
        """

    def record_file(self, transfer_id: str, name: str, size: int, sha256: str) -> None:
        """Called when a file of this task is attached.

        :param sha256: in hexadecimal.
        """

    def record_file_removed(self, transfer_id: str, name: str) -> None:
        """Called when a file was removed from the draft."""

    def record_send(self, transfer_id: str, *, in_doubt: bool) -> None:
        """Called when a send begins, and again when it is known that it was not applied.

        :param in_doubt: whether the transfer may be sent from now on.
        """

    def record_draft_removed(self, transfer_id: str) -> None:
        """Called when the draft is gone."""
