"""The error of a delivery that is refused, in words that say what to do."""

from __future__ import annotations

from outbound_transfer.delivery.decision import Reason
from outbound_transfer.delivery.memory import Scope
from outbound_transfer.protocol.errors import AlreadyDelivered


def refusal(
    reason: Reason, transfer_id: str, found: str, differences: str, then: Scope, now: Scope, delivery_key: str
) -> AlreadyDelivered:
    """Return the error.

    :param transfer_id: of what was sent, or may have been, and is remembered.
    :param found: id of the transfer that a search has found; "" if it has found none.
    :param differences: of what is to be delivered from that; "" if there are none.
    :param then: where that was made.
    :param now: where the connection leads.
    :param delivery_key: "" if the task instance identifies the delivery.
    """
    return AlreadyDelivered(
        reason.value.format(
            subject=f"Delivery key {delivery_key!r}" if delivery_key else "This run",
            transfer_id=found if reason is Reason.MAY_BE_SENT else transfer_id,
            differences=differences,
            then=then.account,
            now=now.account,
            another=f"trigger a new DAG run{' with another delivery_key' if delivery_key else ''}",
        )
    )
