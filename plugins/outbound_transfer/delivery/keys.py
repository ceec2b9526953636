"""Begin a delivery: that of a task instance, or that of a delivery key, which is sent once across tasks, runs and Dags.

The row of a key is claimed by whoever delivers under it. While Airflow runs its owner, or is going to, others are
refused and retried, so that two do not take turns; an owner presumed dead by mistake can no longer store anything.
"""

from __future__ import annotations

import logging

from outbound_transfer.client.client import Client
from outbound_transfer.client.errors import AlreadyDelivered
from outbound_transfer.delivery.attempt import Attempt, describe
from outbound_transfer.delivery.decision import Act, Phase
from outbound_transfer.delivery.delivery import Delivery
from outbound_transfer.delivery.row import Memory, Row
from outbound_transfer.observability import metrics
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.errors import DeliveryKeyInUse

log = logging.getLogger(__name__)


def begin_delivery(client: Client, rows: Deliveries, attempt: Attempt, delivery_key: str | None = None) -> Delivery:
    """Return the delivery of an attempt, which has claimed its row.

    What the task has begun under another key, or without one, is settled first.

    :raises AlreadyDelivered: the task has delivered under another key, or may have.
    :raises DeliveryKeyInUse: another task that Airflow runs, or is going to, delivers under the key.
    :raises InvalidDelivery: the key cannot be one.
    :raises StaleTry: a later attempt has begun.
    """
    own = row = Row.of_task(rows, attempt.by.task)
    if delivery_key is not None:
        row = Row.of_delivery_key(rows, client.settings.account, delivery_key)
    if attempt.claim:  # only the row that is delivered from was deferred with
        row.resume(attempt.claim)
        return Delivery(client, row, attempt)
    if attempt.by.try_number > 1 and not own.read()[0]:
        metrics.MISSING_ROWS.emit(conn_id=attempt.conn_id)
        log.warning(
            "No earlier attempt of this task is in the table of deliveries. If one has sent a transfer, and its row "
            "was deleted or restored, this attempt sends again"
        )
    key = row.key if row.delivery_key else ""
    if (before := own.claim(attempt.by, is_own=True).key) != key:
        _settle(client, Row(rows, before) if before else own, attempt)
        own.save(key=key)
    if key:
        _claim(client, row, attempt)
    return Delivery(client, row, attempt)


def _settle(client: Client, row: Row, attempt: Attempt) -> None:
    """Leave nothing behind of what the task has begun under the key that it had before, or without one.

    :raises AlreadyDelivered: something was sent, or may have been.
    :raises DeliveryKeyInUse: another task is at work on it.
    """
    memory = row.read()[1]
    if attempt.name not in (memory.owner, memory.asked[0]):
        return  # another task has claimed the row of that key since
    _claim(client, row, attempt)
    if Delivery(client, row, attempt).settle() is Act.RETURN:
        raise AlreadyDelivered(
            f"Transfer {row.memory.transfer_id} was sent under the delivery_key or in the account that this task "
            "had before. Nothing is sent. To deliver this, trigger a new DAG run."
        )


def _claim(client: Client, row: Row, attempt: Attempt) -> None:
    """Claim the row of a key; what was sent under it is returned without a claim, while its owner waits for pickup.

    :raises DeliveryKeyInUse: its owner is at work.
    """

    def require_free(memory: Memory) -> None:
        handed_on = memory.phase is Phase.HANDED_ON
        if memory.owner not in ("", attempt.name) and attempt.is_at_work(memory.owner, has_handed_on=handed_on):
            key = repr(row.delivery_key) if row.delivery_key else "that this task had before"
            raise DeliveryKeyInUse(
                f"The {describe(memory.owner)} delivers under the delivery key {key}. Nothing is sent; a retry returns "
                "what that task sends"
            )

    try:
        row.claim(attempt.by, require_free)
    except DeliveryKeyInUse:
        memory = row.read()[1]
        transfer = client.find_transfer(memory.transfer_id) if memory.phase is Phase.SENDING else None
        if transfer is None or transfer.is_draft:
            raise
