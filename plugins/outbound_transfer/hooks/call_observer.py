"""Metrics and spans of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import SpanKind

from outbound_transfer.client.client import RetryHook
from outbound_transfer.client.errors import CallError, RateLimited
from outbound_transfer.client.transport import Request
from outbound_transfer.observability import metrics
from outbound_transfer.traces import set_error, trace


@dataclass(frozen=True)
class CallObserver:
    """Client hooks that emit metrics and spans of its calls, with the connection's id and without any part of a key."""

    conn_id: str
    account: str
    log_retry: RetryHook

    @contextmanager
    def on_attempt(self, request: Request) -> Iterator[Callable[[int], None]]:
        started, statuses = time.monotonic(), list[int]()
        try:
            with trace(request.operation, kind=SpanKind.CLIENT, account=self.account) as span:
                span.set_attribute("http.request.method", request.method)
                yield statuses.append
                for status in statuses:
                    span.set_attribute("http.response.status_code", status)
                    if status >= 400:
                        set_error(span, str(status))
        finally:
            status_tag = next(map(str, statuses), "none")
            tags: dict[str, Any] = {"operation": request.operation, "status": status_tag, "conn_id": self.conn_id}
            metrics.REQUESTS.emit(**tags)
            metrics.REQUEST_DURATION.emit(time.monotonic() - started, **tags)
            if request.upload and statuses == [201]:
                metrics.BYTES_UPLOADED.emit(request.upload.size, conn_id=self.conn_id)

    def on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        tags: dict[str, Any] = {"operation": operation, "conn_id": self.conn_id}
        metrics.RETRIES.emit(**tags)
        if isinstance(error, RateLimited):
            metrics.RATE_LIMIT_WAIT.emit(seconds, **tags)
        self.log_retry(operation, error, seconds)
