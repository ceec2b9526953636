"""Which statuses end a wait, and how (service-api.md, R17)."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from outbound_transfer.client.models import CANCELED, COMPLETE, EXPIRED, PARTIAL, Transfer
from outbound_transfer.client.outcomes import describe

FAIL: Final = "fail"
SKIP: Final = "skip"
SUCCEED: Final = "succeed"

#: What ``on_expired`` and ``on_canceled`` may be.
OUTCOMES: Final = (SUCCEED, FAIL, SKIP)


class Rules(NamedTuple):
    """What each terminal status means for a task.

    :ivar on_expired: one of :data:`OUTCOMES`.
    :ivar on_canceled: one of :data:`OUTCOMES`.
    :ivar accept_partial: whether to succeed as soon as one recipient has picked up.
    """

    on_expired: str = FAIL
    on_canceled: str = FAIL
    accept_partial: bool = False

    def outcome_of(self, transfer: Transfer) -> str | None:
        """Return the outcome of waiting for ``transfer``; None to keep waiting.

        Unknown statuses keep a task waiting (service-api.md, R5: the set of statuses is open).
        """
        is_picked_up_by_some = transfer.status == PARTIAL or transfer.picked_up_count
        if transfer.status == COMPLETE or (
            self.accept_partial and is_picked_up_by_some and transfer.status != CANCELED
        ):
            return SUCCEED
        return {EXPIRED: self.on_expired, CANCELED: self.on_canceled}.get(transfer.status)


class WaitEnd(msgspec.Struct, frozen=True):
    """How a wait in the triggerer has ended: the payload of the trigger's event.

    :ivar transfer: as last read, without its files; None if it never was.
    :ivar message: of an error.
    """

    status: Literal["finished", "timeout", "error"]
    transfer: Transfer | None = None
    message: str = ""


def wait_outcome(status: str) -> str:
    """Return as what a wait is counted that finishes with this status."""
    return {COMPLETE: "picked_up", EXPIRED: "expired", CANCELED: "canceled"}.get(status, "partial")


def skip_reason(transfer: Transfer) -> str:
    """Return why a task is skipped whose transfer has this status."""
    return f"Skipped by on_expired or on_canceled: {describe(transfer)}"
