"""The observer of calls: an interface through which metrics and the ledger learn of every attempt and retry.

Each attempt is a span, too, with the attributes of OpenTelemetry's conventions for HTTP clients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from outbound_transfer.client.traces import set_error, trace
from outbound_transfer.protocol.messages import Call

if TYPE_CHECKING:
    from outbound_transfer.client.retry import RetryDetails

log = logging.getLogger(__name__)


@dataclass
class CallAttempt:
    """One finished attempt of a call.

    :ivar status: HTTP status; None if no complete response arrived.
    :ivar seconds: duration of the attempt.
    """

    call: Call[Any]
    status: int | None = None
    seconds: float = 0.0


class Observer:
    """Base class of observers; its methods do nothing. Exceptions of an observer are logged and ignored."""

    def on_attempt(self, attempt: CallAttempt) -> None:
        """Handle a finished attempt."""

    def on_retry(self, retry: RetryDetails) -> None:
        """Handle a retry, before its delay begins."""

    def on_reservation(self, delay: float) -> None:
        """Handle that a call was reserved, to be made in ``delay`` seconds."""


@contextmanager
def observe_attempt(observer: Observer, call: Call[Any], account: str) -> Iterator[CallAttempt]:
    """Time and trace the attempt made in the block and notify ``observer``; the block sets the attempt's status.

    :param account: site address of the account.
    """
    attempt, started = CallAttempt(call), time.monotonic()
    with trace(call.operation.value, kind=SpanKind.CLIENT, account=account) as span:
        span.set_attribute("http.request.method", call.method)
        try:
            yield attempt
        finally:
            attempt.seconds = time.monotonic() - started
            if attempt.status is not None:
                span.set_attribute("http.response.status_code", attempt.status)
                if attempt.status >= 400:
                    set_error(span, str(attempt.status))
            notify(observer.on_attempt, attempt)


def notify(listener: Callable[[Any], None], event: Any) -> None:
    """Pass an event to a method of an observer; its exceptions are logged, so that no call fails because of them."""
    try:
        listener(event)
    except Exception as error:
        log.warning("A call observer failed and was ignored: %s", type(error).__name__)
