"""Waiting for what happens elsewhere. Nothing is measured by it: it only ends a test that would hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds, far beyond what a busy machine takes.
TEST_TIMEOUT = 600


def eventually(condition: Callable[[], Any], interval: float = 0.005) -> Any:
    """What `condition` gives as soon as that is something; asked every ``interval`` seconds."""
    until = time.monotonic() + TEST_TIMEOUT
    while not (found := condition()):
        assert time.monotonic() < until, "it does not come"
        time.sleep(interval)
    return found
