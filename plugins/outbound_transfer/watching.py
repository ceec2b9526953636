"""What is made of each call's outcome: metrics, and the ledger's counts."""

from __future__ import annotations

from typing import Any

from outbound_transfer import metrics
from outbound_transfer.client import Asked, Observer
from outbound_transfer.client.retry import Wait
from outbound_transfer.ledger.counts import CALLS
from outbound_transfer.ledger.place import place
from outbound_transfer.protocol.errors import RateLimited
from outbound_transfer.protocol.exchange import Operation
from outbound_transfer.warehouse.progress import feed_name


class CallWatch(Observer):
    """Watches the calls of one connection.

    :param conn_id: Airflow's, which stands for the key: no part of that is told to anybody.
    :param base_url: the account's address.
    """

    def __init__(self, conn_id: str, base_url: str) -> None:
        self._conn_id, self._account = conn_id, feed_name(base_url)
        self._is_counted = place() is not None

    def asked(self, asked: Asked) -> None:
        operation, conn_id = asked.call.operation, self._conn_id
        if self._is_counted:
            CALLS.add(self._account, conn_id, operation, asked.status)
        tags: dict[str, Any] = {"operation": operation.value, "status": asked.status or "none", "conn_id": conn_id}
        metrics.CALLS.emit(**tags)
        metrics.CALL_DURATION.emit(asked.seconds, **tags)
        if operation is Operation.ATTACH and asked.status == 201 and asked.call.upload:
            metrics.BYTES_UPLOADED.emit(asked.call.upload.size, conn_id=conn_id)

    def waits(self, wait: Wait) -> None:
        tags: dict[str, Any] = {"operation": wait.call.operation.value, "conn_id": self._conn_id}
        metrics.RETRIES.emit(**tags)
        if isinstance(wait.error, RateLimited):
            metrics.RATE_LIMIT_WAIT.emit(wait.seconds, **tags)
