"""Begin a delivery: that of a task instance, or that of a delivery key, which is sent once across tasks, runs and Dags.

The row of a key is claimed by whoever delivers under it. While Airflow runs its owner, or is going to, others are
refused and retried, so that two do not take turns; an owner presumed dead by mistake can store nothing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outbound_transfer.client.models import check_delivery_key
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.delivery import Delivery
from outbound_transfer.delivery.row import Memory, Row, describe
from outbound_transfer.observability import metrics
from outbound_transfer.warehouse.errors import DeliveryKeyInUse

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.delivery.attempt import Attempt
    from outbound_transfer.store.rows import Rows


log = logging.getLogger(__name__)


class _NotOurs(Exception):
    """Control flow: another task has claimed the row of the key that this one had before."""


def begin_delivery(
    client: Client, rows: Rows, attempt: Attempt, delivery_key: str | None = None, **options: Any
) -> Delivery:
    """Return the delivery of an attempt, which has claimed its row.

    What the task has begun under another key, or without one, is settled first.

    :param options: of :class:`.Delivery`.
    :raises AlreadyDelivered: the task has delivered under another key, or may have.
    :raises DeliveryKeyInUse: another task that Airflow runs, or is going to, delivers under the key.
    :raises InvalidDelivery: the key cannot be one.
    :raises StaleTry: a later attempt has begun.
    """
    key = "" if delivery_key is None else check_delivery_key(delivery_key)
    own = Row.of_task(rows, attempt.by.task)
    keyed = Row.of_delivery_key(rows, client.settings.account, key) if key else None
    if attempt.claim:  # only the row that is delivered from was deferred with
        row = keyed or own
        row.resume(attempt.claim)
        return Delivery(client, row, attempt, delivery_key=key, **options)
    if attempt.by.try_number > 1 and not own.read()[0]:
        metrics.MISSING_ROWS.emit(conn_id=attempt.conn_id)
        log.warning(
            "No earlier attempt of this task is in the table of deliveries. If one has sent a transfer, and its row "
            "was deleted or restored, this attempt sends again"
        )
    before = own.claim(attempt.by, is_own=True).key
    if before != (keyed.key if keyed else ""):
        _settle(client, rows, attempt, own, **options)
        own.save(key=keyed.key if keyed else "")
    if keyed:
        _claim(client, keyed, attempt, lambda memory: _require_free(memory, attempt, key))
    return Delivery(client, keyed or own, attempt, delivery_key=key, **options)


def _settle(client: Client, rows: Rows, attempt: Attempt, own: Row, **options: Any) -> None:
    """Leave nothing behind of what the task has begun under the key that it had before, or without one."""
    if not (before := own.memory.key):
        Delivery(client, own, attempt, **options).withdraw()
        return
    old = Row(rows, before, is_keyed=True)
    try:
        _claim(client, old, attempt, lambda memory: _require_own(memory, attempt))
    except _NotOurs:
        return
    Delivery(client, old, attempt, **options).withdraw()


def _claim(client: Client, row: Row, attempt: Attempt, check: Callable[[Memory], object]) -> None:
    """Claim the row of a key; what was sent under it is returned without a claim, while its owner waits for pickup.

    :raises DeliveryKeyInUse: its owner is at work.
    """
    try:
        row.claim(attempt.by, check)
    except DeliveryKeyInUse:
        memory = row.read()[1]
        transfer = client.find_transfer(memory.transfer_id) if memory.phase is Phase.SENDING else None
        if transfer is None or transfer.is_draft:
            raise


def _require_own(memory: Memory, attempt: Attempt) -> None:
    if memory.owner == attempt.name:
        return
    if memory.asked[0] != attempt.name:
        raise _NotOurs
    if attempt.is_at_work(memory.owner):  # it goes on with what this task may have sent
        raise DeliveryKeyInUse(
            f"The {describe(memory.owner)} continues what this task has begun under another delivery key. "
            "Nothing is sent; a retry may succeed once that task has ended"
        )


def _require_free(memory: Memory, attempt: Attempt, key: str) -> None:
    if memory.owner not in ("", attempt.name) and attempt.is_at_work(memory.owner):
        raise DeliveryKeyInUse(
            f"The {describe(memory.owner)} delivers under the delivery key {key!r}. Nothing is sent; a retry "
            "returns what that task sends"
        )
