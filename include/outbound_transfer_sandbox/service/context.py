"""The state that all services share: stores, clock, account settings."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import Clock
from outbound_transfer_sandbox.domain.models import Account
from outbound_transfer_sandbox.store.accounts import AccountStore
from outbound_transfer_sandbox.store.blobs import BlobStore
from outbound_transfer_sandbox.store.database import Database
from outbound_transfer_sandbox.store.logs import ActivityLog
from outbound_transfer_sandbox.store.mailbox import MailStore
from outbound_transfer_sandbox.store.transfers import TransferStore
from outbound_transfer_sandbox.store.users import UserStore

DATABASE = "sandbox.sqlite"


class Context:
    """The state under `data_dir`. Raises DataInUse if another process has it open."""

    def __init__(self, data_dir: Path, *, durable: bool = True) -> None:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.db = Database(data_dir / DATABASE, durable=durable)
        self.accounts = AccountStore(self.db)
        self.users = UserStore(self.db, defaults.MAX_THROTTLED_SUBJECTS)
        self.transfers = TransferStore(self.db)
        self.mail = MailStore(self.db)
        self.activity = ActivityLog(self.db, defaults.MAX_LOG_BYTES)
        self.blobs = BlobStore(data_dir)
        self.clock = Clock(self.accounts.clock_offset())
        self._seed = _seed(data_dir / "seed")
        self._account = self.accounts.settings()

    @property
    def account(self) -> Account:
        return self._account

    def change_account(self, account: Account) -> None:
        self.accounts.save_settings(account)
        self._account = account

    def derive_secret(self, purpose: str) -> str:
        """Return 64 hexadecimal digits that cannot be guessed and are the same after a restart."""
        return hmac.new(self._seed, purpose.encode(), hashlib.sha256).hexdigest()


def _seed(path: Path) -> bytes:
    """Return the secret that generated keys are derived from, so that a restart can print them again."""
    if not path.exists():
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_bytes(secrets.token_bytes(32))
        temporary.rename(path)
    return path.read_bytes()


def new_id(prefix: str) -> str:
    """Return a new opaque id."""
    return f"{prefix}_{secrets.token_hex(12)}"
