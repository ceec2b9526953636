"""A delivery that a key identifies, and not the task: whatever run, task, index or DAG delivers it, it is sent once.

The state of the delivery is in the key's row (:mod:`outbound_transfer.warehouse.delivery_keys`) instead of the task's
own store, so whoever claims the key goes on where its last owner stopped: with the same draft. A claim waits for an
owner that Airflow runs, or is going to; it fails meanwhile, so that Airflow retries it. An owner that was wrongly taken
for dead cannot write any more, and all that it can still do is send the same draft, which the service does once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.task_attempt import TaskAttempt
from outbound_transfer.delivery import state as states
from outbound_transfer.delivery.comparison import AlreadyDelivered
from outbound_transfer.delivery.state import MISSING_RECORD, PossibleSend
from outbound_transfer.delivery.task_run import TaskRun, find_task_state
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.warehouse.config import open_states, state_conn_id
from outbound_transfer.warehouse.naming import MAX_DELIVERY_KEY_LENGTH

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.delivery.state import DeliveryState
    from outbound_transfer.warehouse.delivery_keys import KeyState

#: States of a task that does not run, and is not going to unless somebody clears it; None if Airflow has none.
_FINISHED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed", None})


def check_delivery_key(delivery_key: Any) -> str:
    """Return the key if it can be one.

    :raises InvalidDelivery: a template without a value has made it, or a database could change it.
    """
    key = delivery_key if isinstance(delivery_key, str) else ""
    if key in ("", "None") or key != key.strip() or not key.isprintable() or len(key) > MAX_DELIVERY_KEY_LENGTH:
        raise InvalidDelivery(
            f"delivery_key must be a text of 1 to {MAX_DELIVERY_KEY_LENGTH} printable characters without spaces around "
            f"them, and not 'None', which a template without a value gives: {delivery_key!r:.300}"
        )
    return key


def open_delivery_key(context: Context, account: str, delivery_key: str) -> KeyState:
    """Return the state of a key, which the running task has not claimed.

    :raises InvalidDelivery: no database is configured that can keep two tasks apart, or the key cannot be one.
    """
    from outbound_transfer.warehouse.delivery_keys import KeyState

    key, conn_id, attempt = check_delivery_key(delivery_key), state_conn_id(), TaskAttempt.of(context)
    if not conn_id:
        raise InvalidDelivery(
            "delivery_key needs a database in which only one of two tasks can claim a key: Airflow's own stores cannot "
            "do that. Name a connection in [outbound_transfer] state_conn_id or ledger_conn_id"
        )
    # An earlier try of the task must have claimed the key: if it is not there, it may be lost.
    first_values = {} if attempt.is_fresh else MISSING_RECORD
    return KeyState(open_states(conn_id), account, key, attempt, first_values=first_values)


class KeyedRun(TaskRun):
    """One try of a task that delivers under a key, which it has claimed or whose delivery was sent.

    The key's state has one record, whichever attempt writes it.
    """

    def __init__(self, context: Context, key_state: KeyState, delivery_key: str) -> None:
        super().__init__(context, resumed=key_state.is_resumed)
        self._key_state, self.delivery_key = key_state, delivery_key
        self.try_number = 1
        self.is_sent = key_state.is_sent
        attempt = TaskAttempt.of(context)
        # With the start of its run: a run may be deleted and made anew under its id.
        self.made_by = repr((*attempt[:4], attempt.run_started_at))

    @property
    def earliest_start(self) -> float:
        return 0.0  # a key is older than its run: any run before may have delivered under it

    @property
    def has_predecessor(self) -> bool:
        return self._key_state.is_taken_over

    def possible_send(
        self,
        record: DeliveryState | None,  # noqa: ARG002  # the key tells the delivery, not the input
        *,
        is_same_request: bool,  # noqa: ARG002
        has_gap: bool,
    ) -> PossibleSend | None:
        if not has_gap:
            return None
        return PossibleSend(f"the record of delivery key {self.delivery_key!r} is missing")

    def lookup_in_other_runs(self, account: str) -> Callable[..., bool]:  # noqa: ARG002  # the key belongs to it
        """Return what tells whether a transfer is the delivery of another key: other runs may have this one."""

        def is_of_other_key(transfer_id: str, sent_at: float | None = None) -> bool:  # noqa: ARG001
            return any(not self._is_own(state) for state in self._key_state.of_other_keys(transfer_id))

        return is_of_other_key

    def _is_own(self, state: KeyState) -> bool:
        """Return whether this very task delivers under another key since a retry: a clear may give it another."""
        record = states.load(state, 1)
        return bool(record and record.made_by == self.made_by and record.clear_counters == self.clear_counters)

    def check_still_running(self) -> None:
        """Check that this try should still run, and that it still has the key.

        :raises TaskNotRunning: Airflow has given it up.
        :raises StaleAttempt: another attempt has claimed the key.
        """
        super().check_still_running()
        self._key_state.check_still_owner()

    def record_sent(self, transfer_id: str) -> None:
        if not self.is_sent:
            self._key_state.record_sent(transfer_id)


def _fail_if_sent_elsewhere(state: KeyState) -> None:
    state.ensure_tables()
    for elsewhere in state.in_other_accounts():
        record = states.load(elsewhere, 1)
        if record is not None and record.send_started:
            raise AlreadyDelivered(
                f"Transfer {record.transfer_id} was sent under this delivery_key, or may have been, in account "
                f"{record.account}, and the connection leads to another account now. Nothing is sent. To send it "
                "again, give it another delivery_key."
            )


def claim_delivery_key(context: Context, account: str, delivery_key: str) -> tuple[KeyedRun, KeyState]:
    """Claim a key for the running task.

    :raises DeliveryKeyInUse: another task that Airflow runs, or is going to, delivers under it.
    :raises AlreadyDelivered: this task has delivered under it in another account, or may have.
    """
    state = open_delivery_key(context, account, delivery_key)
    if not TaskAttempt.of(context).is_fresh:
        _fail_if_sent_elsewhere(state)
    state.claim(lambda owner: find_task_state(context, *owner[:4]) not in _FINISHED)
    return KeyedRun(context, state, delivery_key), state
