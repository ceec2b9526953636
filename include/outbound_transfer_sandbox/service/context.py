"""What every part of the service works with: the stores, the time, the account's settings."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.clock import Clock
from outbound_transfer_sandbox.models import Account
from outbound_transfer_sandbox.store.accounts import Accounts
from outbound_transfer_sandbox.store.blobs import Blobs
from outbound_transfer_sandbox.store.database import Database
from outbound_transfer_sandbox.store.journal import Journal
from outbound_transfer_sandbox.store.mailbox import MailStore
from outbound_transfer_sandbox.store.people import People
from outbound_transfer_sandbox.store.transfers import Transfers

from .space import Space

DATABASE = "sandbox.sqlite"


class Context:
    """The state kept under `data_dir`. Raises DataInUse when another process holds it."""

    def __init__(self, data_dir: Path, quota: int | None = None, *, durable: bool = True) -> None:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.db = Database(data_dir / DATABASE, durable=durable, quota=quota)
        self.accounts = Accounts(self.db)
        self.people = People(self.db, _share(quota, 4096, unspecified.KEPT_ATTEMPTS))
        self.transfers = Transfers(self.db)
        self.mail = MailStore(self.db)
        self.journal = Journal(self.db, _share(quota, 16, unspecified.LOG_BYTES))
        self.blobs = Blobs(data_dir)
        self.space = Space(self.db, self.blobs, quota)
        self.clock = Clock(self.accounts.clock_offset())
        self._seed = _seed(data_dir / "seed")
        self._account = self.accounts.settings()

    @property
    def account(self) -> Account:
        return self._account

    def change_account(self, account: Account) -> None:
        self.accounts.save_settings(account)
        self._account = account

    def derived(self, purpose: str) -> str:
        """64 hex digits that nobody can guess and that a restart finds again."""
        return hmac.new(self._seed, purpose.encode(), hashlib.sha256).hexdigest()


def _share(quota: int | None, part: int, most: int) -> int:
    """What a log may hold: so small a part of the quota that all of them fit in what `Space` keeps back."""
    return most if quota is None else min(most, quota // part)


def _seed(path: Path) -> bytes:
    """The secret that generated keys are derived from, so that a restart can print them though only hashes are kept."""
    if not path.exists():
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_bytes(secrets.token_bytes(32))
        temporary.rename(path)
    return path.read_bytes()


def new_id(prefix: str) -> str:
    """An opaque id."""
    return f"{prefix}_{secrets.token_hex(12)}"
