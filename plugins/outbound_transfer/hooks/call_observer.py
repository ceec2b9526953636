"""Emits metrics of calls."""

from __future__ import annotations

from typing import Any

from outbound_transfer.client import CallAttempt, Observer
from outbound_transfer.client.retry import RetryDetails
from outbound_transfer.observability import metrics
from outbound_transfer.protocol.errors import RateLimited
from outbound_transfer.protocol.messages import Operation


class CallMetricsObserver(Observer):
    """Emits metrics of one connection's calls.

    :param conn_id: Airflow's connection id. It identifies the key; no part of the key is emitted.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    def on_attempt(self, attempt: CallAttempt) -> None:
        operation, conn_id = attempt.call.operation, self._conn_id
        tags: dict[str, Any] = {"operation": operation.value, "status": attempt.status or "none", "conn_id": conn_id}
        metrics.REQUESTS.emit(**tags)
        metrics.REQUEST_DURATION.emit(attempt.seconds, **tags)
        if operation is Operation.ATTACH and attempt.status == 201 and attempt.call.upload:
            metrics.BYTES_UPLOADED.emit(attempt.call.upload.size, conn_id=conn_id)

    def on_reservation(self, delay: float) -> None:
        metrics.RESERVED_AHEAD.emit(max(delay, 0.0), conn_id=self._conn_id)

    def on_retry(self, retry: RetryDetails) -> None:
        tags: dict[str, Any] = {"operation": retry.call.operation.value, "conn_id": self._conn_id}
        metrics.RETRIES.emit(**tags)
        if isinstance(retry.caused_by, RateLimited):
            metrics.RATE_LIMIT_WAIT.emit(retry.wait_for, **tags)
