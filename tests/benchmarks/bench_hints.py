"""When an end is noticed among 200,000 outstanding transfers of one key, with and without events that name it.

In virtual time, with the real poll, its client and its tables, and a service in memory. A watcher is told of each end,
as after a restart of its triggerer; each end lands as an event with the next page of the feed, beside those of
transfers that are sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from outbound_transfer.client import Settings
from outbound_transfer.polling.poller import PollUpdate
from outbound_transfer.polling.watcher import CompletionWatcher
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.events import EventStore
from support.feed_pages import event, page
from support.virtual_cluster import KEY, SharedTables, VirtualProcess, VirtualTime
from support.warehouses import sqlite_hook

#: Seconds from one transfer that was sent to the next one, and from one page of the feed to the next one.
SENT_EVERY, PAGE_EVERY = 3.0, 60.0


class Service:
    """Transfers by number, in the order in which they were sent.

    :ivar calls: number of calls by minute.
    """

    def __init__(self, outstanding: int, finished: int, clock: VirtualTime) -> None:
        self.clock, self.began = clock, clock.now
        count = outstanding + finished
        self.status = ["complete" if number * finished % count < finished else "pending" for number in range(count)]
        self.listed = {
            status: [number for number, its in enumerate(self.status) if its == status]
            for status in ("pending", "partial", "complete", "expired", "canceled")
        }
        self.calls: Counter[int] = Counter()

    def sent_at(self, number: int) -> float:
        return self.began - (len(self.status) - number) * SENT_EVERY

    def pick_up(self, number: int) -> None:
        pending = self.listed["pending"]
        del pending[bisect_left(pending, number)]
        insort(self.listed["complete"], number)
        self.status[number] = "complete"

    def answer(self, target: str) -> bytes:
        self.calls[int(self.clock.now - self.began) // 60] += 1
        url = urlsplit(target)
        if number := url.path.removeprefix("/v1/transfers").removeprefix("/t"):
            return self._encode(self._transfer(int(number)))
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        numbers = self.listed.get(query["status"], range(len(self.status)))
        stop = bisect_left(numbers, int(query["cursor"])) if "cursor" in query else len(numbers)
        rows = numbers[max(stop - 100, 0) : stop]
        more = str(rows[0]) if stop > 100 else None
        return self._encode({"data": [self._transfer(each) for each in reversed(rows)], "next_cursor": more})

    def _transfer(self, number: int) -> dict[str, Any]:
        recipient = {"email": "ann@example.com", "name": "Ann", "picked_up_at": None}
        times = {"sent_at": _iso(self.sent_at(number)), "expires_at": _iso(self.began + 90 * 86_400)}
        return {
            "id": f"t{number}",
            "status": self.status[number],
            "subject": "Report",
            "recipients": [recipient],
            **times,
        }

    @staticmethod
    def _encode(answer: dict[str, Any]) -> bytes:
        body = json.dumps(answer).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while request := await reader.read(65_536):
                writer.write(self.answer(request.split(b" ")[1].decode()))
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(one, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


async def observe(folder: Path, arguments: argparse.Namespace, *, has_events: bool) -> list[str]:
    """Return the lines to print."""
    clock = VirtualTime(time.time())
    service = Service(arguments.outstanding, arguments.finished, clock)
    tables = SharedTables(sqlite_hook(folder / f"{has_events}.db"), clock)
    feed = EventStore(Warehouse(tables.hook), KEY.account)
    feed.get_or_create_cursor()
    outstanding = {f"t{number}": service.sent_at(number) for number in service.listed["pending"]}
    recent = {f"t{number}": service.sent_at(number) for number in range(len(service.status) - 200, len(service.status))}
    state = {"since": max(recent.values()), "outstanding": outstanding, "recent": recent, "missing": {}}
    landed: dict[str, float] = {}
    noticed: dict[str, float] = {}
    ending = iter(service.listed["pending"][:: max(arguments.outstanding // int(arguments.ends + 1), 1)])
    ended: list[str] = []

    async def settings() -> Settings:
        return Settings(url, "key")

    async def on_update(_: PollUpdate) -> None:
        for transfer in watcher.drain()[0]:
            noticed[transfer.id] = clock.now

    def end() -> None:
        if clock.now < service.began + arguments.hours * 3_600 and (number := next(ending, None)) is not None:
            service.pick_up(number)
            ended.append(f"t{number}")
            clock.after(arguments.hours * 3_600 / arguments.ends, end)

    def land() -> None:
        cursor = feed.get_or_create_cursor()
        lines = [event(cursor + each, type="file_downloaded", data={"id": one}) for each, one in enumerate(ended, 1)]
        others = int(PAGE_EVERY / SENT_EVERY)
        lines += [event(cursor + len(lines) + each, data={"id": "t1"}) for each in range(1, others + 1)]
        if has_events:
            feed.load_page(page(cursor, *lines))
        landed.update(dict.fromkeys(ended, clock.now))
        ended.clear()
        clock.after(PAGE_EVERY, land)

    async with service.serving() as url:
        process = VirtualProcess("triggerer", clock, tables, settings, on_update)
        watcher = CompletionWatcher(60.0, clock.now, state)
        with process.registry.register_watcher(watcher):
            clock.after(100.0, end)
            clock.after(101.0, land)
            until = service.began + arguments.hours * 3_600 + 600
            clock.after(until - clock.now, int)
            await clock.run(lambda: clock.now >= until)
            await process.stop()
    return list(_lines(landed, noticed, service.calls, has_events=has_events))


def _lines(
    landed: dict[str, float], noticed: dict[str, float], calls: Counter[int], *, has_events: bool
) -> Iterator[str]:
    delays = sorted(noticed[one] - at for one, at in landed.items() if one in noticed)
    yield f"{'events name each end' if has_events else 'no events'}: {len(delays)} of {len(landed)} ends noticed"
    if delays:
        worst = f"{statistics.median(delays):.0f} s at the median, {delays[-1]:.0f} s at most"
        yield f"  from the landing of its event to the notice   {worst}"
    rate = f"{calls.total() / (max(calls) + 1):.1f} on average, {max(calls.values())} at most"
    yield f"  calls a minute                                {rate}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outstanding", type=int, default=200_000)
    parser.add_argument("--finished", type=int, default=100_000, help="transfers that have finished before")
    parser.add_argument("--hours", type=float, default=3.0, help="virtual hours over which transfers end")
    parser.add_argument("--ends", type=int, default=720, help="transfers that end in this time")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="bench-hints-") as folder:
        for has_events in (True, False):
            print("\n".join(asyncio.run(observe(Path(folder), arguments, has_events=has_events))), flush=True)


if __name__ == "__main__":
    main()
