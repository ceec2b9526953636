"""Redacts secrets in the logs of the HTTP library, which at level DEBUG quotes whatever the peer sends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from outbound_transfer.protocol.redaction import redact

#: Each logger gets the filter, because the filter of a logger does not apply to records of its children.
_LOGGERS: Final = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")))

#: Secrets of the call that this thread or task is making; None outside of our calls, whose records stay unchanged.
_secrets: ContextVar[tuple[str, ...] | None] = ContextVar("secrets of the current call", default=None)


@contextmanager
def redact_http_logs(secrets: Iterable[str]) -> Iterator[None]:
    """Redact ``secrets`` in the records that the HTTP library logs in the block."""
    token = _secrets.set(tuple(secrets))
    try:
        yield
    finally:
        _secrets.reset(token)


def _redact_record(record: logging.LogRecord) -> bool:
    if (secrets := _secrets.get()) is not None:
        record.msg, record.args = redact(record.getMessage(), secrets), ()
        record.exc_info = record.exc_text = None
    return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_redact_record)
