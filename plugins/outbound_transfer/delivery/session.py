"""What all parts of a delivery share: the client, the state store, the log, the task's try and the observer."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from outbound_transfer.delivery import state as states
from outbound_transfer.delivery.comparison import AlreadyDelivered, already_delivered, check_account
from outbound_transfer.delivery.observer import DeliveryObserver
from outbound_transfer.delivery.state import DeliveryState, Match, StateStore

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client import Client
    from outbound_transfer.delivery.task_run import TaskRun
    from outbound_transfer.protocol.models import NewTransfer


class DeliverySession:
    """One try of a task that delivers.

    :param run: the try.
    :param observer: is notified of every step.
    """

    def __init__(
        self, client: Client, store: StateStore, log: Logger, *, run: TaskRun, observer: DeliveryObserver | None = None
    ) -> None:
        self.client, self.store, self.log, self.run = client, store, log, run
        self.observer = observer or DeliveryObserver()
        self._checking = Lock()
        self.account, self._key = client.settings.account, client.settings.transfer_api_key

    def save(self, state: DeliveryState) -> None:
        """Store the state under the key of this try.

        It fails in a try that Airflow has given up, which must not go on.
        """
        state.try_number = self.run.try_number
        states.save(self.store, state)

    def check_still_current(self) -> None:
        """Check that no other try works on the draft now. It may be called from a thread.

        :raises TaskNotRunning: Airflow has given this try up.
        :raises StateLost: a later try of the task has begun.
        :raises StaleAttempt: another attempt has claimed the delivery key.
        """
        with self._checking:
            self.run.check_still_running()
            states.check_newest(self.store, self.run.try_number)

    def state_from_inputs(self, new: NewTransfer, files: Any, **known: Any) -> DeliveryState:
        """Return the state of a delivery whose draft is about to be created."""
        return states.state_from_inputs(
            new,
            files,
            self._key,
            **known,
            account=self.account,
            clear_counters=self.run.clear_counters,
            try_number=self.run.try_number,
            made_by=self.run.made_by,
        )

    def empty_state(self, transfer_id: str, **known: Any) -> DeliveryState:
        """Return the state of a draft that another task made and this one has not touched."""
        salt = states.new_salt()
        return DeliveryState(
            transfer_id,
            **known,
            salt=salt,
            key_check=states.key_check(salt, self._key),
            account=self.account,
            clear_counters=self.run.clear_counters,
            try_number=self.run.try_number,
            made_by=self.run.made_by,
        )

    def match(self, state: DeliveryState, new: NewTransfer) -> Match:
        """Return whether the draft of ``state`` was made from ``new``."""
        return state.match(new, self._key)

    def is_same_user(self, state: DeliveryState) -> bool:
        """Return whether the connection still leads to the account of ``state``, with the same key."""
        return state.account == self.account and state.is_of_key(self._key)

    def was_cleared(self, state: DeliveryState) -> bool | None:
        """Return whether the task was cleared since ``state``; None if it is unknown which task of the run was.

        A task that comes upon the delivery of another requests it anew, too.
        """
        if state.made_by != self.run.made_by:
            return True
        (max_tries, clear_number), (max_tries_then, clear_number_then) = self.run.clear_counters, state.clear_counters
        if max_tries != max_tries_then:
            return True
        if clear_number == clear_number_then:
            return False
        return None

    def already_delivered(self, transfer_id: str, how: str) -> AlreadyDelivered:
        """Return the error for a transfer that was sent with other input.

        :param how: in what the sent transfer differs.
        """
        return already_delivered(transfer_id, how, self.run.delivery_key)

    def check_account(self, transfer_id: str, account: str, *, is_sending: bool = False) -> None:
        """Compare the account that a transfer was made in with the connection's.

        :raises WrongTransfer: they differ.
        """
        check_account(transfer_id, account, self.account, is_sending=is_sending)
