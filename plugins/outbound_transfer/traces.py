"""OpenTelemetry's spans of what takes time. Airflow configures what becomes of them; without that, they go nowhere.

An attribute is an operation, an account, an id, a number or an outcome: never a recipient, a subject or a file's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.trace import Span, SpanKind, StatusCode, get_tracer

_TRACER: Final = get_tracer(__name__)

_PREFIX: Final = "outbound_transfer."


@contextmanager
def trace(name: str, *, kind: SpanKind = SpanKind.INTERNAL, **attributes: str | int) -> Iterator[Span]:
    """Trace the block as a span. Its name and those of its attributes get the common prefix."""
    # An error's text, which OpenTelemetry would record, may name a file or a recipient: its class is enough.
    with _TRACER.start_as_current_span(
        _PREFIX + name, kind=kind, record_exception=False, set_status_on_exception=False
    ) as span:
        span.set_attributes({_PREFIX + each: value for each, value in attributes.items()})
        try:
            yield span
        except BaseException as error:
            set_error(span, type(error).__name__)
            raise


def set_error(span: Span, error_type: str) -> None:
    """Mark a span as failed.

    :param error_type: class of the exception, or HTTP status.
    """
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)
