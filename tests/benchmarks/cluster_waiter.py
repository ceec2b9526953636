"""A process that waits for transfers as a triggerer does: ``… TRANSFERS NOTICED INTERVAL``.

``TRANSFERS`` is a file of ids. Each that ends becomes a line of ``NOTICED``: its id, and when that was noticed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TextIO

from benchmarks.simulated_waiters import triggers_of
from support.triggers import Triggerer


async def wait(transfer_ids: list[str], noticed: TextIO, interval: float) -> None:
    triggerer = Triggerer()
    numbers = await triggerer.start(*triggers_of(transfer_ids, interval))
    waited_for, told = dict(zip(numbers, transfer_ids, strict=True)), set[int]()

    def is_over() -> bool:
        for number in triggerer.events.keys() - told:
            noticed.write(f"{waited_for[number]} {time.time()}\n")
            told.add(number)
        return len(told) == len(transfer_ids)

    await triggerer.until(is_over, pause=0.2)


def main(transfers: str, noticed: str, interval: str) -> None:
    with Path(noticed).open("a", buffering=1) as file:
        asyncio.run(wait(Path(transfers).read_text().split(), file, float(interval)))


if __name__ == "__main__":
    main(*sys.argv[1:])
