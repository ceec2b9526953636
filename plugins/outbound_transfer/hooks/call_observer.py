"""Emits metrics of calls."""

from __future__ import annotations

from typing import Any

from outbound_transfer.client.errors import CallError, RateLimited
from outbound_transfer.client.transport import Observer, Request
from outbound_transfer.observability import metrics


class CallMetricsObserver(Observer):
    """Emits metrics of one connection's calls.

    :param conn_id: Airflow's connection id. It identifies the key; no part of the key is emitted.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    def on_attempt(self, request: Request, status: int | None, seconds: float) -> None:
        conn_id = self._conn_id
        tags: dict[str, Any] = {"operation": request.operation, "status": status or "none", "conn_id": conn_id}
        metrics.REQUESTS.emit(**tags)
        metrics.REQUEST_DURATION.emit(seconds, **tags)
        if status == 201 and request.upload:
            metrics.BYTES_UPLOADED.emit(request.upload.size, conn_id=conn_id)

    def on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        tags: dict[str, Any] = {"operation": operation, "conn_id": self._conn_id}
        metrics.RETRIES.emit(**tags)
        if isinstance(error, RateLimited):
            metrics.RATE_LIMIT_WAIT.emit(seconds, **tags)
