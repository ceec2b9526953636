"""Which machine a request means, from where it comes, and who sent it. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

# What proxies add to say for whom they ask.
_FORWARDED = re.compile(
    "(x-)?forwarded(-.+)?|via|(x-)?((true|cluster)-)?client-ip|x-real-ip|x-(original|proxy|envoy|amzn)-.+|(cf|fastly)-.+"
)


def host(headers: Mapping[str, str]) -> str | None:
    """The name or address in Host; None where there is none."""
    return _hostname(f"//{headers.get('host', '')}")


def is_from_another_site(headers: Mapping[str, str]) -> bool:
    """Whether a page sent it that is not our own, one of another port of this machine included.

    Browsers name the page's origin with whatever changes something, and newer ones their relation with everything.
    """
    origin, relation = headers.get("origin"), headers.get("sec-fetch-site", "none")
    ours = origin is None or origin.partition("//")[2] == headers.get("host")
    return not ours or relation not in {"none", "same-origin"}


def is_forwarded(names: Iterable[str]) -> bool:
    """Whether a proxy has sent it on, by the names of its headers, in small letters."""
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
    """Whether it is a name that its owner could point at this machine; addresses and localhost are not."""
    return name != "localhost" and _address(name) is None


def _address(name: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name or "")
    except ValueError:
        return None
