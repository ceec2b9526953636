"""Where the service is, and with which keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httpx

from outbound_transfer.protocol.exchange import Api

DEFAULT_TIMEOUT: Final = 60.0

#: As the connection form has it; a system's clock cannot count much longer.
LONGEST_TIMEOUT: Final = 3_600.0


class InvalidSettings(ValueError):
    """The connection cannot be used as it is; the text says which field to correct, and quotes no key."""


@dataclass(frozen=True)
class Settings:
    """One account's address and keys.

    :ivar base_url: scheme, host and port, and a path below which ``/v1`` lies, if any.
    :ivar timeout: seconds that the service may take over each step of a call (connect, a read, a write).
    :ivar verify: whether the service's TLS certificate is checked.
    :ivar web_url: the account's web application, for links; the base URL where it is not set.
    """

    base_url: str
    transfer_api_key: str = field(repr=False)
    event_api_key: str = field(default="", repr=False)
    timeout: float = DEFAULT_TIMEOUT
    verify: bool = True
    web_url: str = ""

    def __post_init__(self) -> None:
        url = _split(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise InvalidSettings(f"the host must be an http or https address, not {url.hostname or 'empty'!r}")
        if url.username or url.password or url.query or url.fragment:
            raise InvalidSettings("the host must hold no user, password, query or fragment")
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise InvalidSettings(f"timeout must be over 0 and at most {LONGEST_TIMEOUT:g} seconds, not {self.timeout}")

    @property
    def account(self) -> str:
        """The base URL in one form: case of the host and a port that goes without saying tell no accounts apart."""
        return str(httpx.URL(self.base_url)).rstrip("/")

    def key(self, api: Api) -> str:
        """The key of an interface.

        :raises InvalidSettings: it is missing, or could not be a header's value.
        """
        key, where = {
            Api.TRANSFER: (self.transfer_api_key, "the connection's password (the transfer API key)"),
            Api.FEED: (self.event_api_key, "the connection's extra field event_api_key"),
        }[api]
        if not key:
            raise InvalidSettings(f"{where} is not set")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InvalidSettings(f"{where} has characters that no key has, a line break or a space perhaps")
        return key


def _split(address: str) -> SplitResult:
    try:
        url = urlsplit(address)
        # What the HTTP library, the resolver or the socket would refuse at first use is refused here.
        httpx.URL(address).raw_host.decode().encode("idna")
        if url.port == 0:
            raise ValueError("nothing can listen there")
    except (ValueError, httpx.InvalidURL):
        raise InvalidSettings("the host is not an address: check its name, its brackets and its port") from None
    return url
