"""Settings of one account: the service's address, keys and timeout."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import httpx

from outbound_transfer.client.errors import InvalidSettings

DEFAULT_TIMEOUT: Final = 60.0

#: Seconds; the connection form has the same limit, and sockets refuse much longer timeouts.
MAX_TIMEOUT: Final = 3_600.0

#: Of every key of the event feed (service-api.md, R9).
_EVENT_KEY_PREFIX: Final = "obs_"


@dataclass(frozen=True)
class Settings:
    """One account's address and keys.

    :ivar base_url: scheme, host and port; ``/v1`` is below it (service-api.md, R1).
    :ivar transfer_api_key: key of the transfer interface (service-api.md, R6).
    :ivar event_api_key: key of the event feed (service-api.md, R9); "" if it is not used.
    :ivar timeout: seconds for each step of a call (connect, one read, one write).
    :ivar verify: whether to check the service's TLS certificate.
    :ivar web_url: address of the account's web application, for links; "" for the base URL.
    :ivar rehearses: whether no transfer is sent: a send ends in :class:`.Rehearsed`, right before its request.
    :raises InvalidSettings: the address or the timeout is unusable.
    """

    base_url: str
    transfer_api_key: str = field(repr=False)
    event_api_key: str = field(default="", repr=False)
    timeout: float = DEFAULT_TIMEOUT
    verify: bool = True
    web_url: str = ""
    rehearses: bool = False

    def __post_init__(self) -> None:
        try:
            # Reject here what the resolver or the socket would reject at first use.
            url = httpx.URL(self.base_url)
            url.raw_host.decode().encode("idna")
            if url.port is not None and not 0 < url.port < 65_536:
                raise ValueError("no such port")
        except (ValueError, httpx.InvalidURL):
            raise InvalidSettings("the host is not an address: check its name, its brackets and its port") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidSettings(f"the host must be an http or https address, not {url.host or 'empty'!r}")
        if any((url.userinfo, url.query, url.fragment)):
            raise InvalidSettings("the host must hold no user, password, query or fragment")
        if not 0 < self.timeout <= MAX_TIMEOUT:
            raise InvalidSettings(f"timeout must be over 0 and at most {MAX_TIMEOUT:g} seconds, not {self.timeout}")

    @property
    def origin(self) -> str:
        """Scheme, host and port of the service, for errors."""
        return self.base_url.rstrip("/")

    @property
    def key_digest(self) -> str:
        """A digest of the transfer key and where it leads: what a database gets of it."""
        return hashlib.sha256(f"{self.base_url}\0{self.transfer_api_key}".encode()).hexdigest()[:32]

    @cached_property
    def account(self) -> str:
        """The account's name: ``account.example.com``, followed by the port and path, if any.

        The site address identifies the account (service-api.md, R1). Unlike the id of a connection, it survives
        a renaming and is the same for all connections to one account.
        """
        url = httpx.URL(self.base_url)  # drops the default port of the scheme
        return url.netloc.decode() + url.path.rstrip("/")

    def key(self, *, is_feed: bool = False) -> str:
        """Return the key of the transfer interface, or of the event feed.

        :raises InvalidSettings: the key is missing, or contains characters that a header cannot transport.
        """
        key, where = self.transfer_api_key, "the connection's password (the transfer API key)"
        if is_feed:
            key, where = self.event_api_key, "the connection's extra field event_api_key"
        if not key:
            raise InvalidSettings(f"{where} is not set. Enter the key in that field; others are not read")
        if not is_feed and key.startswith(_EVENT_KEY_PREFIX):
            raise InvalidSettings(
                f"{where} is an event key, as it begins with {_EVENT_KEY_PREFIX}. Put it in the extra field "
                "event_api_key instead; generate a transfer API key for the password"
            )
        if not re.fullmatch("[!-~]+", key):
            raise InvalidSettings(f"{where} contains characters that no key contains, such as a space or a line break")
        return key
