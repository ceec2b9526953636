"""Telling somebody what becomes of each call, without knowing whom: the metrics and the ledger listen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbound_transfer.protocol.exchange import Call

if TYPE_CHECKING:
    from outbound_transfer.client.retry import Wait

log = logging.getLogger(__name__)


@dataclass
class Asked:
    """One try of a call, that has ended.

    :ivar status: HTTP status; None where no whole answer came.
    :ivar seconds: how long it took.
    """

    call: Call[Any]
    status: int | None = None
    seconds: float = 0.0


class Observer:
    """Listens, and does nothing. What a listener raises is logged and goes no further."""

    def asked(self, asked: Asked) -> None:
        """A try of a call has ended."""

    def waits(self, wait: Wait) -> None:
        """A wait before the next try begins."""


@contextmanager
def observed(observer: Observer, call: Call[Any]) -> Iterator[Asked]:
    """Tell ``observer`` of the try that the block makes; the block sets the status that it learns."""
    asked, began = Asked(call), time.monotonic()
    try:
        yield asked
    finally:
        asked.seconds = time.monotonic() - began
        tell(observer.asked, asked)


def tell(listener: Callable[[Any], None], news: Any) -> None:
    """Tell a listener; no call fails because of it."""
    try:
        listener(news)
    except Exception as error:
        log.warning("An observer of the calls failed: %s", type(error).__name__)
