"""API keys: who may call, and how often (service-api.md, R6 to R9 and R53)."""

from __future__ import annotations

import hashlib
import hmac
from collections import defaultdict, deque

from outbound_transfer_sandbox.domain import defaults, rate_limit
from outbound_transfer_sandbox.domain.clock import SECOND
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_api_key, not_found, rate_limited
from outbound_transfer_sandbox.domain.models import Caller, TransferKey, User

from .context import Context


class ApiKeyService:
    """Creates, checks and revokes keys, and counts the requests of each transfer key."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._accounts = context.accounts
        self._windows: defaultdict[int, deque[int]] = defaultdict(deque)
        for key, timestamp in context.activity.counted_requests(context.clock.now() - self._window):
            self._windows[key].append(timestamp)

    @property
    def _window(self) -> int:
        return int(self._context.account.window_seconds * SECOND)

    def authenticate_caller(self, authorization: list[str]) -> Caller:
        """Return the caller of the transfer interface, and count the request.

        Raises 401 invalid_api_key, 403 api_not_enabled, api_not_permitted or sending_not_permitted, 429 rate_limited,
        in this order (service-api.md, R7).
        """
        known = self._accounts.caller(_digest(_bearer(authorization)))
        if known is None or not known[1].active:
            raise invalid_api_key("The API key is unknown or revoked, or its user is deactivated.")
        caller, user = known
        self._check_grants(user)
        self._count(caller.key)
        return caller

    def _check_grants(self, user: User) -> None:
        account = self._context.account
        if not (account.api_enabled and account.outgoing_enabled):
            raise ApiError(403, "api_not_enabled", "The interface or outgoing transfers are off for this account.")
        if not user.api_permitted:
            raise ApiError(403, "api_not_permitted", "The user may not use this interface.")
        if not user.sending_permitted:
            raise ApiError(403, "sending_not_permitted", "The user may not send files.")

    def _count(self, key: int) -> None:
        account, now, window = self._context.account, self._context.clock.now(), self._windows[key]
        while window and window[0] <= now - self._window:
            window.popleft()
        wait = rate_limit.retry_after(window, now, account.requests_per_window, account.window_seconds)
        if wait is not None:
            raise rate_limited(wait)
        window.append(now)

    def check_feed_key(self, authorization: list[str]) -> None:
        """Raise 401 unless the header has the account's active event key (service-api.md, R9)."""
        active = self._accounts.event_key()
        if active is None or not hmac.compare_digest(active, _digest(_bearer(authorization))):
            raise invalid_api_key("The event key is missing or invalid.")

    def new_transfer_key(self, user: str, label: str = "") -> str:
        key = self._derive_key(defaults.TRANSFER_KEY_PREFIX, self._accounts.transfer_key_count() + 1)
        self.register_transfer_key(key, user)
        if label:
            self._accounts.label_transfer_key(_digest(key), label)
        return key

    def list_keys(self, user: str) -> list[TransferKey]:
        """Return the user's keys, newest first."""
        return self._accounts.transfer_keys(user)

    def create_key_for(self, user: str, label: str) -> str:
        """Create a key for its own user. Raises 403 api_not_enabled, api_not_permitted (service-api.md, R6)."""
        account, owner = self._context.account, self._accounts.user(user)
        if not account.api_enabled:
            raise ApiError(403, "api_not_enabled", "An administrator must enable the interface for the account first.")
        if owner is None or not owner.api_permitted:
            raise ApiError(403, "api_not_permitted", "You may not use this interface. Ask an administrator.")
        return self.new_transfer_key(user, label)

    def revoke_own_key(self, user: str, key: int) -> None:
        """Revoke one of the user's keys. Raises 404 for any other key."""
        if not self._accounts.revoke_own_key(user, key, self._context.clock.now()):
            raise not_found("key")

    def is_monitored(self) -> bool:
        """Return whether monitoring is on, that is, whether there is an active event key."""
        return self._accounts.event_key() is not None

    def stop_monitoring(self) -> None:
        self._accounts.revoke_event_key(self._context.clock.now())

    def register_transfer_key(self, key: str, user: str) -> None:
        self._accounts.add_transfer_key(_digest(key), user, self._context.clock.now())

    def revoke_transfer_key(self, key: str) -> bool:
        """Revoke a key, and return whether it exists."""
        return self._accounts.revoke_transfer_key(_digest(key), self._context.clock.now())

    def new_event_key(self) -> str:
        key = self._derive_key(defaults.EVENT_KEY_PREFIX, self._accounts.event_key_count() + 1)
        self.register_event_key(key)
        return key

    def register_event_key(self, key: str) -> None:
        if self._accounts.event_key() != _digest(key):
            self._accounts.replace_event_key(_digest(key), self._context.clock.now())

    def find_generated_transfer_key(self) -> str | None:
        """Return the first generated transfer key if it is valid."""
        key = self._derive_key(defaults.TRANSFER_KEY_PREFIX, 1)
        return key if self._accounts.caller(_digest(key)) else None

    def find_generated_event_key(self) -> str | None:
        """Return the active event key if it was generated."""
        key = self._derive_key(defaults.EVENT_KEY_PREFIX, self._accounts.event_key_count())
        return key if self._accounts.event_key() == _digest(key) else None

    def _derive_key(self, prefix: str, number: int) -> str:
        return prefix + self._context.derive_secret(f"{prefix}{number}")[:40]


def _bearer(authorization: list[str]) -> str:
    """Return the key in `Authorization: Bearer <key>`. Raises 401 unless there is exactly one such header."""
    scheme, _, key = authorization[0].partition(" ") if len(authorization) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not key.strip():
        raise invalid_api_key("The header Authorization: Bearer <API_KEY> is missing or malformed.")
    return key.strip()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
