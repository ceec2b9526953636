"""The findings of a check of the set-up: one for each part."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec


class Health(Enum):
    """The state of a part; ``unknown`` if it could not be observed."""

    OK = "ok"
    DEGRADED = "degraded"
    BROKEN = "broken"
    UNKNOWN = "unknown"


_EXIT_STATUSES: Final = {Health.OK: 0, Health.DEGRADED: 1, Health.UNKNOWN: 1, Health.BROKEN: 2}


class Finding(msgspec.Struct, frozen=True):
    """The state of one part of the set-up, without secrets.

    :ivar found: what was observed.
    :ivar to_do: what to do about it; "" if nothing.
    """

    check: str
    status: Health
    found: str
    to_do: str = ""

    def __str__(self) -> str:
        return f"{self.found} {self.to_do}".rstrip()


def exit_status(findings: Iterable[Finding]) -> int:
    """Return 0 if all is well, 1 if a part is degraded or unknown, 2 if one is broken."""
    return max((_EXIT_STATUSES[each.status] for each in findings), default=0)
