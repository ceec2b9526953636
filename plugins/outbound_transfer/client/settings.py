"""Settings of one account: the service's address, keys and timeout; and the HTTP client with them."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx

from outbound_transfer import __version__
from outbound_transfer.client.errors import InvalidSettings

DEFAULT_TIMEOUT: Final = 60.0
MAX_TIMEOUT: Final = 3_600.0  # as in the connection form; sockets refuse much longer ones

_HEADERS: Final = {
    "Accept": "application/json, application/x-ndjson",
    "Accept-Encoding": "identity",  # so that a small response cannot decompress into a huge one
    "User-Agent": f"airflow-provider-outbound-transfer/{__version__}",
}


@dataclass(frozen=True)
class Settings:
    """One account's address and keys (service-api.md, R1, R6, R9).

    :raises InvalidSettings: the address or the timeout is unusable.
    """

    base_url: str  # scheme, host and port; /v1 is below it
    transfer_api_key: str = field(repr=False)
    event_api_key: str = field(default="", repr=False)  # "" if the feed is not used
    timeout: float = DEFAULT_TIMEOUT  # seconds for each step of a call (connect, one read, one write)
    verify: bool = True  # whether to check the service's TLS certificate
    web_url: str = ""  # of the account's web application, for links; "" for the base URL
    rehearses: bool = False  # whether each send ends in Rehearsed, right before its request

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
            raise InvalidSettings("the host must not contain a user, password, query or fragment")
        if not 0 < self.timeout <= MAX_TIMEOUT:
            raise InvalidSettings(f"timeout must be over 0 and at most {MAX_TIMEOUT:g} seconds, not {self.timeout}")

    @property
    def origin(self) -> str:
        return self.base_url.rstrip("/")

    @property
    def key_digest(self) -> str:
        """A digest of the transfer key and its address, for a database."""
        return hashlib.sha256(f"{self.base_url}\0{self.transfer_api_key}".encode()).hexdigest()[:32]

    @cached_property
    def account(self) -> str:
        """The account's name: ``account.example.com``, followed by the port and path, if any (service-api.md, R1)."""
        url = httpx.URL(self.base_url)  # drops the default port of the scheme
        return url.netloc.decode() + url.path.rstrip("/")

    def key(self, *, is_feed: bool = False) -> str:
        """:raises InvalidSettings: the key is missing, or contains characters that a header cannot transport."""
        key, where = self.transfer_api_key, "the connection's password (the transfer API key)"
        if is_feed:
            key, where = self.event_api_key, "the connection's extra field event_api_key"
        if not key:
            raise InvalidSettings(f"{where} is not set. Enter the key in that field; no other field is read")
        if not is_feed and key.startswith("obs_"):  # service-api.md, R9
            raise InvalidSettings(
                f"{where} is an event key, as it begins with obs_. Put it in the extra field event_api_key instead; "
                "generate a transfer API key for the password"
            )
        if not re.fullmatch("[!-~]+", key):
            raise InvalidSettings(f"{where} contains characters that no key contains, such as a space or a line break")
        return key


def open_client(settings: Settings) -> httpx.Client:
    """:raises InvalidSettings: an environment variable is unusable."""
    url = httpx.URL(settings.base_url)
    proxies = {} if proxy_bypass(url.netloc.decode()) else getproxies()
    proxy = proxies.get(url.scheme, proxies.get("all"))
    try:
        return httpx.Client(
            base_url=url,
            timeout=settings.timeout,
            verify=settings.verify and url.scheme == "https" and _tls_context(os.environ.get("SSL_CERT_FILE")),
            headers=_HEADERS,
            # The service uses none (service-api.md, R6); one that a response sets would be sent with each later call.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            proxy=proxy if proxy is None or "://" in proxy else f"http://{proxy}",
            # httpx refuses a NO_PROXY with ranges of IPv6, and proxies of other schemes that it has no package for.
            trust_env=False,
        )
    except OSError as error:
        raise InvalidSettings(
            f"the environment variable SSL_CERT_FILE names certificates that cannot be read: {error.strerror or error}"
        ) from None
    except (ValueError, ImportError, httpx.InvalidURL):
        raise InvalidSettings(
            "a proxy environment variable (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY) is not a proxy's address, "
            "such as http://proxy.example.com:3128"
        ) from None


@lru_cache(maxsize=1)
def _tls_context(_certificates: str | None) -> ssl.SSLContext:
    return httpx.create_ssl_context()  # which takes longer than a call, as it loads all certificates
