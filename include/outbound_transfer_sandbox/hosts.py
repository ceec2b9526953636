"""Which machine a request means, and from where. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def host(headers: Mapping[str, str]) -> str | None:
    """The name or address in Host; None where there is none."""
    return _hostname(f"//{headers.get('host', '')}")


def origin(headers: Mapping[str, str]) -> str | None:
    """The name or address in Origin; "" without the header, None for one that says nothing."""
    value = headers.get("origin")
    return "" if value is None else _hostname(value)


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
    """Whether it is a name that its owner could point at this machine; addresses and localhost are not."""
    return name != "localhost" and _address(name) is None


def _address(name: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name or "")
    except ValueError:
        return None
