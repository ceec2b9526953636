"""The whole service, put together."""

from __future__ import annotations

from pathlib import Path

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.clock import SECOND
from outbound_transfer_sandbox.errors import invalid_request
from outbound_transfer_sandbox.models import User

from .access import Access
from .attempts import Attempts
from .context import DATABASE, Context
from .delivery import Delivery
from .feed import Feed
from .files import FileService
from .mailbox import Mailbox
from .overlap import Overlaps
from .people import PeopleService
from .pickup import Pickup
from .sessions import Sessions
from .transfers import TransferService


class Sandbox:
    """The service with its state under `data_dir`. Raises DataInUse when another process holds it.

    `quota` bounds the bytes that all of it takes on disk. State that is not `durable` outlives the process but may not
    outlive a failure of the machine; it starts faster.
    """

    def __init__(self, data_dir: Path, quota: int | None = None, *, durable: bool = True) -> None:
        self._data_dir = data_dir
        self._quota = quota
        self._durable = durable
        self._password: str | None = None
        self._start()

    def _start(self) -> None:
        self.context = Context(self._data_dir, self._quota, durable=self._durable)
        self.access = Access(self.context)
        self.mailbox = Mailbox(self.context)
        self.transfers = TransferService(self.context, self.mailbox)
        self.files = FileService(self.context, self.transfers)
        self.delivery = Delivery(self.context, self.transfers)
        self.feed = Feed(self.context)
        self.sends = Overlaps()
        attempts = Attempts(self.context)
        self.sessions = Sessions(self.context)
        self.people = PeopleService(self.context, attempts, self.sessions)
        self.pickup = Pickup(self.context, self.transfers, self.delivery, attempts, self.sessions, self.mailbox)
        self.transfers.remove_abandoned()
        self.context.blobs.sweep(self.context.transfers.file_ids())

    def close(self) -> None:
        self.context.db.close()

    def reset(self) -> tuple[str, str]:
        """Forgets everything but what `open_keys` and `open_people` answered, the clock too; answers the keys."""
        self.close()
        (self._data_dir / DATABASE).unlink()
        self._start()  # removes the files, which have no record any more
        if self._password is not None:
            self.people.open(self._password)
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

    def open_people(self, password: str | None) -> str | None:
        """Lets the first user and administrator in: see `PeopleService.open`."""
        self._password = self.people.open(password)
        return self._password

    def advance_clock(self, seconds: float) -> None:
        """Moves the service's time forward."""
        offset = self.context.clock.offset + int(seconds * SECOND)
        if offset > unspecified.MAX_CLOCK_OFFSET:
            raise invalid_request("advance_seconds: the clock cannot go that far.")
        self.context.accounts.save_clock_offset(offset)
        self.context.clock.offset = offset
        self.transfers.remove_abandoned()
