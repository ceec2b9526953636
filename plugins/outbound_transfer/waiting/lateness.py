"""When an outstanding transfer is late, by ``notify_after``: so long after its send, or before its expiry."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from outbound_transfer.client.models import Transfer, to_epoch


def find_late(transfer: Transfer, notify_after: Iterable[float], now: float) -> list[float]:
    """Return the items of ``notify_after`` by which the transfer is late, the one that passed last at the end.

    :param notify_after: seconds from ``sent_at`` on; negative ones from ``expires_at`` on.
    :param now: seconds since the epoch.
    :return: empty if the transfer was not sent, or everybody has picked up.
    """
    return [after for at, after in _times(transfer, notify_after) if at <= now]


def first_late_at(transfer: Transfer, notify_after: Iterable[float]) -> float:
    """Return when the transfer is first late, in seconds since the epoch; inf if it never is.

    :param notify_after: see :func:`find_late`.
    """
    return min((at for at, _ in _times(transfer, notify_after)), default=inf)


def late_reason(after: float, duration: str) -> str:
    """Return why a transfer is late.

    :param duration: the length of ``after``, in words.
    """
    return f"It was sent more than {duration} ago" if after > 0 else f"It expires in less than {duration}"


def _times(transfer: Transfer, notify_after: Iterable[float]) -> list[tuple[float, float]]:
    sent_at, expires_at = to_epoch(transfer.sent_at), to_epoch(transfer.expires_at)
    if sent_at is None or not transfer.not_picked_up:
        return []
    bases = ((after, sent_at if after > 0 else expires_at) for after in notify_after)
    return sorted((base + after, after) for after, base in bases if base is not None)
