"""A process that waits for transfers as a triggerer does: ``… TRANSFERS NOTICED INTERVAL``.

``TRANSFERS`` is a file of ids. Each that ends becomes a line of ``NOTICED``: its id, and when that was noticed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TextIO

from benchmarks.simulated_waiters import start_waiters


async def wait(transfer_ids: list[str], noticed: TextIO, interval: float) -> None:
    def write(transfer_id: str) -> None:
        noticed.write(f"{transfer_id} {time.time()}\n")

    await asyncio.gather(*start_waiters(transfer_ids, interval, write))


def main(transfers: str, noticed: str, interval: str) -> None:
    with Path(noticed).open("a", buffering=1) as file:
        asyncio.run(wait(Path(transfers).read_text().split(), file, float(interval)))


if __name__ == "__main__":
    main(*sys.argv[1:])
