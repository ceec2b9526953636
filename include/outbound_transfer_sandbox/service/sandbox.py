"""The whole service, put together."""

from __future__ import annotations

from pathlib import Path

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.clock import SECOND
from outbound_transfer_sandbox.errors import invalid_request
from outbound_transfer_sandbox.models import User

from .access import Access
from .context import DATABASE, Context
from .delivery import Delivery
from .feed import Feed
from .files import FileService
from .overlap import Overlaps
from .transfers import TransferService


class Sandbox:
    """The service with its state under `data_dir`. Raises DataInUse when another process holds it.

    State that is not `durable` outlives the process but may not outlive a failure of the machine; it starts faster.
    """

    def __init__(self, data_dir: Path, *, durable: bool = True) -> None:
        self._data_dir = data_dir
        self._durable = durable
        self._start()

    def _start(self) -> None:
        self.context = Context(self._data_dir, durable=self._durable)
        self.access = Access(self.context)
        self.transfers = TransferService(self.context)
        self.files = FileService(self.context, self.transfers)
        self.delivery = Delivery(self.context, self.transfers)
        self.feed = Feed(self.context)
        self.sends = Overlaps()
        self.transfers.remove_abandoned()
        self.context.blobs.sweep(self.context.transfers.file_ids())

    def close(self) -> None:
        self.context.db.close()

    def reset(self) -> tuple[str, str]:
        """Forgets everything but the keys that `open_keys` answered, and answers them; the clock shows real time."""
        self.close()
        (self._data_dir / DATABASE).unlink()
        self._start()  # removes the files, which have no record any more
        return self.open_keys(*self._keys)

    def open_keys(self, transfer_key: str | None, event_key: str | None) -> tuple[str, str]:
        """Makes the given keys valid and generates those that are not given; a restart finds the same ones."""
        user = unspecified.FIRST_USER
        if self.context.accounts.user(user) is None:
            self.context.accounts.save_user(User(user, active=True, api_permitted=True, sending_permitted=True))
        if transfer_key:
            self.access.admit_transfer_key(transfer_key, user)
        if event_key:
            self.access.admit_event_key(event_key)
        self._keys = (
            transfer_key or self.access.standing_transfer_key() or self.access.new_transfer_key(user),
            event_key or self.access.standing_event_key() or self.access.new_event_key(),
        )
        return self._keys

    def advance_clock(self, seconds: float) -> None:
        """Moves the service's time forward."""
        offset = self.context.clock.offset + int(seconds * SECOND)
        if offset > unspecified.MAX_CLOCK_OFFSET:
            raise invalid_request("advance_seconds: the clock cannot go that far.")
        self.context.accounts.save_clock_offset(offset)
        self.context.clock.offset = offset
        self.transfers.remove_abandoned()
