"""Checks of a request's origin: its host name, its peer, proxies, other sites."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

# Headers that proxies add to name the client behind them.
_FORWARDED = re.compile(
    "(x-)?forwarded(-.+)?|via|(x-)?((true|cluster)-)?client-ip|x-real-ip|x-(original|proxy|envoy|amzn)-.+|(cf|fastly)-.+"
)


def host(headers: Mapping[str, str]) -> str | None:
    """Return the name or address in Host, or None."""
    return _hostname(f"//{headers.get('host', '')}")


def is_from_another_site(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another site sent the request. Another port of this machine is another site.

    Browsers send Origin with requests that change something, and newer ones send Sec-Fetch-Site with every request.
    """
    origin, relation = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_own_origin = origin is None or origin.partition("//")[2] == headers.get("host")
    return not is_own_origin or relation not in {"none", "same-origin"}


def is_forwarded(names: Iterable[str]) -> bool:
    """Return whether a proxy forwarded the request, judged by its header names in lower case."""
    return any(_FORWARDED.fullmatch(name) for name in names)


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_loopback(name: str | None) -> bool:
    if name == "localhost":
        return True
    address = _address(name)
    return address is not None and (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_rebindable(name: str | None) -> bool:
    """Return whether the owner of the name could point it at this machine. Addresses and localhost are safe."""
    return name != "localhost" and _address(name) is None


def _address(name: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name or "")
    except ValueError:
        return None
