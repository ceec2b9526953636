"""What the HTTP library logs of our calls, without their secrets: at DEBUG it quotes whatever the peer says."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from outbound_transfer.protocol.redaction import clean

#: A filter of a logger does not see what its children log, so each of them has it.
_LOGGERS: Final = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")))

#: Of the call under way in this thread or task; none of ours elsewhere, whose records stay as they are.
_secrets: ContextVar[tuple[str, ...] | None] = ContextVar("secrets of the call under way", default=None)


@contextmanager
def no_secrets_logged(secrets: Iterable[str]) -> Iterator[None]:
    """Keep ``secrets`` out of what is logged of the calls in the block."""
    token = _secrets.set(tuple(secrets))
    try:
        yield
    finally:
        _secrets.reset(token)


def _cleaned(record: logging.LogRecord) -> bool:
    if (secrets := _secrets.get()) is not None:
        record.msg, record.args = clean(record.getMessage(), secrets), ()
        record.exc_info = record.exc_text = None
    return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_cleaned)
