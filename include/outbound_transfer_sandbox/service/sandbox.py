"""The whole service: its shared state and all its parts."""

from __future__ import annotations

from pathlib import Path

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import DAY, SECOND
from outbound_transfer_sandbox.domain.errors import invalid_request
from outbound_transfer_sandbox.domain.models import User

from .api_keys import ApiKeyService
from .concurrent_sends import ConcurrentSends
from .context import DATABASE, Context
from .feed import FeedService
from .files import FileService
from .lifecycle import TransferLifecycle
from .login_throttle import LoginThrottle
from .mailbox import MailboxService
from .pickup import PickupService
from .sessions import SessionService
from .transfers import TransferService
from .users import UserService


class SandboxService:
    """The service with its state under `data_dir`. Raises DataInUse if another process has it open.

    Without `durable` it starts faster; its state survives the end of the process, but perhaps not a failure of the
    machine.
    """

    def __init__(self, data_dir: Path, *, durable: bool = True) -> None:
        self._data_dir = data_dir
        self._durable = durable
        self._password: str | None = None
        self._start()

    def _start(self) -> None:
        self.context = Context(self._data_dir, durable=self._durable)
        self.api_keys = ApiKeyService(self.context)
        self.mailbox = MailboxService(self.context)
        self.transfers = TransferService(self.context, self.mailbox)
        self.files = FileService(self.context, self.transfers)
        self.lifecycle = TransferLifecycle(self.context, self.transfers)
        self.feed = FeedService(self.context)
        self.sends = ConcurrentSends()
        throttle = LoginThrottle(self.context)
        self.sessions = SessionService(self.context)
        self.users = UserService(self.context, throttle, self.sessions)
        self.pickup = PickupService(self.context, self.transfers, self.lifecycle, throttle, self.sessions, self.mailbox)
        self.transfers.remove_abandoned()
        self.context.blobs.remove_orphans(self.context.transfers.file_ids())

    def close(self) -> None:
        self.context.db.close()

    def reset(self) -> tuple[str, str]:
        """Remove all data but the keys and passwords of `ensure_keys` and `ensure_users`. Returns the keys."""
        self.close()
        (self._data_dir / DATABASE).unlink()
        self._start()  # removes the files, since they have no records
        if self._password is not None:
            self.users.ensure_users(self._password)
        return self.ensure_keys(*self._keys)

    def ensure_keys(self, transfer_key: str | None, event_key: str | None) -> tuple[str, str]:
        """Register the given keys and generate the missing ones. A restart generates the same keys."""
        user = defaults.FIRST_USER
        if self.context.accounts.user(user) is None:
            self.context.accounts.save_user(User(user, active=True, api_permitted=True, sending_permitted=True))
        if transfer_key:
            self.api_keys.register_transfer_key(transfer_key, user)
        if event_key:
            self.api_keys.register_event_key(event_key)
        self._keys = (
            transfer_key or self.api_keys.find_generated_transfer_key() or self.api_keys.new_transfer_key(user),
            event_key or self.api_keys.find_generated_event_key() or self.api_keys.new_event_key(),
        )
        return self._keys

    def ensure_users(self, password: str | None) -> str | None:
        """Create the first user and administrator: see `UserService.ensure_users`."""
        self._password = self.users.ensure_users(password)
        return self._password

    def advance_clock(self, seconds: float) -> None:
        """Move the service's time forward."""
        offset = self.context.clock.offset + int(seconds * SECOND)
        if offset > defaults.MAX_CLOCK_OFFSET_DAYS * DAY:
            raise invalid_request("advance_seconds is too large: the clock would leave its range.")
        self.context.accounts.save_clock_offset(offset)
        self.context.clock.offset = offset
        self.transfers.remove_abandoned()
