"""How long a triggerer's event loop stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

#: Seconds between two looks at the clock.
TICK = 0.01


class StallMeter(BaseTrigger):
    """Fires with the stalls of over 50 ms, in milliseconds, when ``<folder>/stop`` appears."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.stall_meter.StallMeter", {"folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        stop, stalls = Path(self.folder, "stop"), []
        before = time.monotonic()
        while not stop.exists():  # noqa: ASYNC240  # a few microseconds
            await asyncio.sleep(TICK)
            now = time.monotonic()
            if (stall := now - before - TICK) > 0.05:
                stalls.append(round(stall * 1000))
            before = now
        yield TriggerEvent(stalls)
