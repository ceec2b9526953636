"""Metrics and spans of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import SpanKind

from outbound_transfer.client.errors import CallError, RateLimited
from outbound_transfer.client.retry import RetryHook, log_retry
from outbound_transfer.client.transport import Request
from outbound_transfer.observability import metrics
from outbound_transfer.traces import set_error, trace


class CallObserver:
    """The hooks of a client that emit metrics and spans of one connection's calls.

    :param conn_id: Airflow's connection id. It identifies the key; no part of the key is emitted.
    :param account: name of the connection's account.
    :param on_retry: called before each wait, after its metrics were emitted.
    """

    def __init__(self, conn_id: str, account: str, on_retry: RetryHook = log_retry) -> None:
        self._conn_id, self._account, self._on_retry = conn_id, account, on_retry

    @contextmanager
    def on_attempt(self, request: Request) -> Iterator[Callable[[int], None]]:
        started, statuses, conn_id = time.monotonic(), list[int](), self._conn_id
        try:
            with trace(request.operation, kind=SpanKind.CLIENT, account=self._account) as span:
                span.set_attribute("http.request.method", request.method)
                yield statuses.append
                for status in statuses:
                    span.set_attribute("http.response.status_code", status)
                    if status >= 400:
                        set_error(span, str(status))
        finally:
            status_tag = next(map(str, statuses), "none")
            tags: dict[str, Any] = {"operation": request.operation, "status": status_tag, "conn_id": conn_id}
            metrics.REQUESTS.emit(**tags)
            metrics.REQUEST_DURATION.emit(time.monotonic() - started, **tags)
            if request.upload and statuses == [201]:
                metrics.BYTES_UPLOADED.emit(request.upload.size, conn_id=conn_id)

    def on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        tags: dict[str, Any] = {"operation": operation, "conn_id": self._conn_id}
        metrics.RETRIES.emit(**tags)
        if isinstance(error, RateLimited):
            metrics.RATE_LIMIT_WAIT.emit(seconds, **tags)
        self._on_retry(operation, error, seconds)
