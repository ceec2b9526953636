"""Waiting for what happens elsewhere. Nothing is measured by it: it only ends a test that would hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds, far beyond what a busy machine takes.
TEST_TIMEOUT = 120


def eventually(condition: Callable[[], Any]) -> Any:
    """What `condition` gives as soon as that is something."""
    until = time.monotonic() + TEST_TIMEOUT
    while not (found := condition()):
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.005)
    return found
