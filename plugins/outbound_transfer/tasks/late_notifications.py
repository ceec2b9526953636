"""``notify_after`` and ``notifiers``: who has not picked up in time is announced, and the wait goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from outbound_transfer.airflow_compat.names import (
    NEVER_EXPIRE,
    AirflowFailException,
    timezone,
)
from outbound_transfer.client.outcomes import OUTCOME_KEY, TransferOutcome
from outbound_transfer.client.wording import pluralize
from outbound_transfer.delivery.notes import state_store
from outbound_transfer.observability import metrics
from outbound_transfer.tasks.errors import fail_without_retry
from outbound_transfer.tasks.notifiers import call_notifiers, to_items, to_notifiers
from outbound_transfer.waiting.lateness import find_late, first_late_at, late_reason

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from outbound_transfer.client.models import Transfer

#: Where a task stores by which items of ``notify_after`` it has notified, and of which transfer.
_STATE_KEY: Final = "outbound_transfer_late"


@dataclass(frozen=True)
class LateNotifications:
    """Notifies once for each time of ``notify_after`` at which a transfer is outstanding.

    What it has notified of is stored before the notifiers are called: a worker that is killed in between leaves one
    notification out, and none is ever repeated.

    :ivar notify_after: in seconds; see :func:`.find_late`. Empty if nobody is notified.
    :ivar notifiers: all of them are called each time.
    """

    notify_after: tuple[float, ...]
    notifiers: tuple[Any, ...]

    @classmethod
    def from_arguments(cls, notify_after: Any, notifiers: Any) -> LateNotifications:
        """Return the notifications that a task's arguments give.

        :raises AirflowFailException: naming the argument that is wrong, empty or missing.
        """
        if notify_after is None and notifiers is None:
            return cls((), ())
        after = to_items(notify_after)
        if not after or not all(isinstance(each, timedelta) and each for each in after):
            raise AirflowFailException(
                "notify_after must be one timedelta or several, of which none is 0, with notifiers, "
                f"not {notify_after!r:.100}"
            )
        called = to_notifiers(notifiers, "notifiers must be one BaseNotifier or several, with notify_after")
        return cls(tuple(sorted({each.total_seconds() for each in after})), called)

    def not_notified(self, context: Context, transfer_id: str) -> list[float]:
        """Return the items of ``notify_after`` by which this task has not notified, in any try."""
        notified = self._notified(context, transfer_id) if self.notify_after else ()
        return [each for each in self.notify_after if each not in notified]

    def notify(self, transfer: Transfer, context: Context, conn_id: str, log: Logger, *, late_by: Any = None) -> None:
        """Call each notifier once if the transfer is late, and they were not called since. A failure is logged.

        :param late_by: the items by whose first one the triggerer has found it late, whatever the clock is here. If
            they are not those that are left, its event has come before.
        """
        now = timezone.utcnow().timestamp()
        if late_by is None and not find_late(transfer, self.notify_after, now):
            return
        notified = self._notified(context, transfer.id)
        left = [each for each in self.notify_after if each not in notified]
        late = find_late(transfer, left, max(now, first_late_at(transfer, left)) if late_by == left else now)
        if not late:
            return
        stored = {"transfer_id": transfer.id, "notified": [*notified, *late]}
        state_store(context).set(_STATE_KEY, stored, retention=NEVER_EXPIRE)
        if not notified:
            metrics.LATE_TRANSFERS.emit(conn_id=conn_id)
        reason = late_reason(late[-1], str(timedelta(seconds=abs(late[-1]))).removesuffix(", 0:00:00"))
        called = pluralize(len(self.notifiers), "notifier")
        log.info("Transfer '%s' is late. %s. Calling %s; the wait continues", transfer.id, reason, called)
        outcome = TransferOutcome.from_transfer(transfer, reason)
        call_notifiers(self.notifiers, {**context, OUTCOME_KEY: outcome}, log)

    @staticmethod
    def _notified(context: Context, transfer_id: str) -> Sequence[float]:
        with fail_without_retry():
            stored: Any = state_store(context).get(_STATE_KEY, default=None)
        is_same = isinstance(stored, dict) and stored.get("transfer_id") == transfer_id
        return cast("Sequence[float]", stored["notified"]) if is_same else ()
