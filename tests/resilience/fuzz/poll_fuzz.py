"""Deferred waits in a triggerer's own runner against a hostile service, in virtual time.

``python -m resilience.fuzz.poll_fuzz [--seconds N] [--seed S]`` plays random scenarios until the time is up. In each,
for a while, the service, what is in front of it, its data, the machine's clock, the triggerer and those who wait
misbehave in ways that the seed draws; then all is calm. Exits with 1 where a promise was broken, naming the seeds.

Promised is: a transfer's end is told to each that waits for it within :data:`BOUND` seconds of it, or of the calm; no
wait ends by what is not about it, nor by its deadline without a poll since; and in any :data:`PERIOD`, at most
:data:`MAX_REQUESTS` calls come, besides those that a fault refuses: their repeats have a pace of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

from outbound_transfer.triggers.transfer import TransferTrigger
from support.quiet import be_quiet
from support.triggers import Triggerer
from support.virtual_time import VirtualTime

HOUR = 3_600.0

#: When all is calm, in virtual seconds from the beginning; and how long it is watched.
CALM = 40 * 60.0
END = CALM + 40 * 60.0

#: Seconds between two looks at who waits.
LOOK = 3.0

#: Seconds within which an end is told: the longest interval, rest, pause and Retry-After, and a look.
BOUND = 300 + 900 + 120 + 300 + 120

#: Of the 600 that the service allows a key (service-api.md, R53) in these seconds: polls that rest for their calls need
#: 240, and the last one may make a hundred calls before its rest.
MAX_REQUESTS = 340
PERIOD = 600.0

FINAL = ("complete", "expired", "canceled")


@dataclass
class Sent:
    """A transfer as the service truly has it.

    :ivar wrong: spoils its row in listings; ``wrong_alone`` its own answer too. Both until the calm, or for ever.
    """

    id: str
    sent: float
    ends: float
    final: str
    claims: dict[str, Any]
    wrong: Callable[[dict[str, Any]], Any] | None = None
    wrong_alone: bool = False
    is_for_ever: bool = False
    hides_id: bool = False

    def status(self, now: float) -> str:
        return self.final if now >= self.ends else "pending"

    def can_be_told(self) -> bool:
        """Whether it can be read after the calm at the latest. Without ``sent_at``, nothing proves that it was sent."""
        return bool(self.claims.get("sent_at", True)) and not (self.is_for_ever and self.wrong and self.wrong_alone)


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: {field: value for field, value in row.items() if field != name}


def _with(**wrong: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: {**row, **wrong}


WRONG_ROWS: list[Callable[[dict[str, Any]], Any]] = [
    _with(subject=None),
    _with(subject=7),
    _with(status=None),
    _with(status=["pending"]),
    _with(recipients=None),
    _with(recipients=[{"email": "ann@example.com", "name": 7}]),
    _with(sent_at=12),
    _with(expires_at={}),
    _with(files="none"),
    _without("subject"),
    _without("status"),
]
WITHOUT_ID: list[Callable[[dict[str, Any]], Any]] = [_with(id=None), _with(id="\ud800"), lambda _: None, lambda _: 7]
STRANGE_TEXTS = ["half \ud800", "\udc00", "nul \0", "x" * 5_000, "", "\u202e"]
STRANGE_TIMES = [None, "", "soon", "12:", "2999-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "1970-01-01T00:00:00Z"]
STRANGE_TIMES += ["0001-01-01T00:00:00Z", "2026-03-01", "2026-03-01T23:59:59+14:00"]
RETRY_AFTER = ["0", "30", "86400", "1000000000", "9" * 40, "-5", "soon", "Fri, 31 Dec 9999 23:59:59 GMT"]
DATES = ["", "soon", "Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Sun, 01 Mar 2026 00:00:00 GMT"]
HTML = b"<html><body>Sign in</body></html>"
ERRORS = {429: "rate_limited", 500: "internal_error", 502: "service_unavailable", 503: "service_unavailable"}
FAULTS = [
    "429", "429", "429", "500", "503", "html 200", "html 401", "html 403", "html 404", "html 409", "cut",
    "reset", "redirect",
]  # fmt: skip
FAULTS += ["broken page", "empty page", "endless listing", "no listing"]
NO_TRANSFER = [None, 7, "", "None", [], {}, {"id": None}, ["t"], "\ud800"]
NO_INTERVAL = ["{{ params.every }}", None, []]  # other numbers are the sensor's to refuse
NO_DEADLINE = [None, "soon", "", 7]


@dataclass
class Fault:
    """Something between us and the service, from ``begins`` to ``ends``."""

    begins: float
    ends: float
    kind: str
    chance: float
    retry_after: str


@dataclass
class World:
    """The service and the clocks. All times are virtual seconds from the beginning.

    :ivar asked, done: when requests came, and which of them no fault refused with 429 or 5xx.
    """

    chance: random.Random
    clock: VirtualTime = field(default_factory=VirtualTime)
    beginning: float = field(default_factory=time.time)
    transfers: list[Sent] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    breaks: bool = False
    page_size: int = 100

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def off(self) -> float:
        return self.clock.off

    def at(self, seconds: float, action: Callable[[], Any]) -> None:
        self.clock.after(max(seconds - self.now, 0.0), action)

    def iso(self, seconds: float) -> str:
        return datetime.fromtimestamp(self.beginning + seconds, UTC).isoformat().replace("+00:00", "Z")

    # ----------------------------------------------------------------------------------------------------- the service

    def answer(self, target: str) -> bytes:
        """The answer to ``GET target``."""
        self.asked.append(self.now)
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        one = unquote(url.path.removeprefix("/v1/transfers").removeprefix("/"))
        for fault in self.faults:
            if fault.begins <= self.now < fault.ends and self.chance.random() < fault.chance:
                if not fault.kind.isdecimal():
                    self.done.append(self.now)
                return self._fault(fault, query, one)
        self.done.append(self.now)
        return self._retrieve(one) if one else self._list(query)

    def _fault(self, fault: Fault, query: dict[str, str], one: str) -> bytes:
        kind, _, code = fault.kind.rpartition(" ")
        if kind == "html":
            return http(int(code), HTML, "Content-Type: text/html", f"Retry-After: {fault.retry_after}")
        if fault.kind.isdecimal():
            status = int(fault.kind)
            body = json.dumps({"error": ERRORS[status], "message": "\ud800 " + fault.kind}).encode()
            return http(status, body, f"Retry-After: {fault.retry_after}", f"Date: {self.chance.choice(DATES)}")
        if fault.kind == "reset":
            self.breaks = True
            return b""
        if fault.kind == "redirect":
            return http(302, b"", "Location: http://127.0.0.1:9/")
        whole = self._retrieve(one) if one else self._list(query)
        if fault.kind == "cut":
            self.breaks = True
            return whole[: len(whole) // 2]
        if one:
            return whole
        if fault.kind == "no listing":
            return http(500, json.dumps({"error": "internal_error", "message": ""}).encode())
        if fault.kind == "broken page":
            return http(200, b'{"data": [{"id": "\\x"}], "next_cursor": null}')
        cursor = None if fault.kind == "empty page" and self.chance.random() < 0.1 else str(self.chance.random())
        return http(200, json.dumps({"data": [], "next_cursor": cursor}).encode())

    def _list(self, query: dict[str, str]) -> bytes:
        rows = [one for one in self.transfers if one.sent <= self.now]
        rows.sort(key=lambda one: -one.sent)
        if (status := query.get("status", "all")) != "all":
            rows = [one for one in rows if one.status(self.now) == status]
        if cursor := query.get("cursor"):
            rows = [one for one in rows if one.sent < float(cursor)]
        limit = min(int(query.get("limit", 25)), self.page_size)
        more = repr(rows[limit - 1].sent) if len(rows) > limit else None
        return http(200, json.dumps({"data": [self._row(one) for one in rows[:limit]], "next_cursor": more}).encode())

    def _retrieve(self, transfer_id: str) -> bytes:
        one = next((one for one in self.transfers if one.id == transfer_id and one.sent <= self.now), None)
        if one is None:
            return http(404, json.dumps({"error": "not_found", "message": ""}).encode())
        row = self._row(one) if one.wrong_alone else self._true_row(one)
        return http(200, json.dumps(row).encode())

    def _row(self, one: Sent) -> Any:
        row = self._true_row(one)
        return one.wrong(row) if one.wrong and (one.is_for_ever or self.now < CALM) else row

    def _true_row(self, one: Sent) -> dict[str, Any]:
        status = one.status(self.now)
        picked_up = self.iso(one.ends) if status == "complete" else None
        return {
            "id": one.id,
            "status": status,
            "subject": "Report",
            "message": None,
            "recipients": [{"email": "ann@example.com", "name": "ann", "picked_up_at": picked_up}],
            "expires_at": self.iso(one.ends if one.final == "expired" else END + 86_400),
            "sent_at": self.iso(one.sent),
            **one.claims,
        }

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while not self.breaks:
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self.answer(request.split(b" ")[1].decode()))
                    await writer.drain()
            self.breaks = False
            writer.close()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


# ------------------------------------------------------------------------------------------------------ those who wait


@dataclass
class Waiter:
    """A task that waits, across triggerers. ``kwargs`` are those of its trigger.

    :ivar joins, leaves: when; it leaves as a task that is cleared.
    :ivar overdue: since when its deadline has passed by the machine's clock, in this triggerer.
    """

    kwargs: dict[str, Any]
    transfer_id: str
    deadline: float
    joins: float
    leaves: float
    is_nonsense: bool
    payload: Any = None
    at: float = 0.0
    overdue: float | None = None
    ever_overdue: bool = False


# --------------------------------------------------------------------------------------------------------- a scenario


class PollScenario:
    """What one seed draws, and how it went."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # Of small pages, even a few transfers make a listing that is too long for one poll.
        self.world = World(random.Random(seed + 1), page_size=random.Random(seed + 2).choice([100, 100, 3]))
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self.clock: list[tuple[float, float]] = []
        self._transfers()
        self._faults()
        self.waiters = [self._waiter(one) for one in self.world.transfers if self.chance.random() < 0.6]
        self.waiters += [self._nonsense() for _ in range(self.chance.choice([0, 0, 1, 3]))]
        self.restarts = sorted(self.chance.uniform(0, CALM) for _ in range(self.chance.choice([0, 0, 1, 3])))

    def _transfers(self) -> None:
        pick = self.chance
        poisoning = pick.choice([0.0, 0.2, 0.8])
        for number in range(pick.choice([5, 15, 30, 120])):
            sent = pick.choice([-HOUR * pick.random() * 24, pick.uniform(0, CALM + 300)])
            ends = max(sent, 0.0) + pick.choice([5.0, 300.0, CALM, 100 * HOUR]) * pick.random()
            one = Sent(f"t{number:03d}", sent, ends, pick.choice(FINAL), {})
            if pick.random() < poisoning:
                self._poison(one)
            self.world.transfers.append(one)

    def _poison(self, one: Sent) -> None:
        pick = self.chance
        # A page of a hundred rows shows some that are known, whatever times others claim; one of three may not.
        if pick.random() < 0.5 and self.world.page_size > 3:
            one.claims = {"sent_at": pick.choice(STRANGE_TIMES)}
        if pick.random() < 0.3:
            one.claims["expires_at"] = pick.choice(STRANGE_TIMES)
        if pick.random() < 0.3:
            one.claims["subject"] = pick.choice(STRANGE_TEXTS)
        if pick.random() < 0.7:
            one.hides_id = pick.random() < 0.2
            one.wrong = pick.choice(WITHOUT_ID if one.hides_id else WRONG_ROWS)
            one.wrong_alone, one.is_for_ever = pick.random() < 0.7, pick.random() < 0.5

    def _faults(self) -> None:
        pick = self.chance
        for _ in range(pick.choice([0, 2, 4, 8])):
            begins = pick.uniform(0, CALM)
            ends = min(begins + pick.choice([60.0, 300.0, 900.0]) * pick.random(), CALM)
            chance = pick.choice([0.2, 1.0])
            self.world.faults.append(Fault(begins, ends, pick.choice(FAULTS), chance, pick.choice(RETRY_AFTER)))
        for _ in range(pick.choice([0, 1, 2])):
            begins, off = pick.uniform(0, CALM), pick.choice([-30 * 86_400, -HOUR, -61, 61, HOUR, 86_400])
            self.clock.append((begins, off))
            if pick.random() < 0.5:
                self.clock.append((pick.uniform(begins, CALM), 0.0))

    def _set_clock(self, off: float) -> None:
        self.world.clock.set_calendar(off)
        self._note_overdue()

    def _waiter(self, one: Sent) -> Waiter:
        pick = self.chance
        joins = max(one.sent, 0.0) + pick.choice([0.0, 600.0 * pick.random()])
        deadline = joins + pick.choice([1.0, CALM, 2 * END, 1_000 * HOUR]) * pick.random()
        kwargs = {
            "transfer_id": one.id,
            "outbound_transfer_conn_id": "outbound_transfer_default",
            "poke_interval": pick.choice([0, 10, 60, 60, 60, 60, 60, 60, 300]),
            "deadline": self.world.iso(deadline),
            "rules": {},
        }
        leaves = joins + CALM * pick.random() if pick.random() < 0.1 else END + 1
        return Waiter(kwargs, one.id, deadline, joins, leaves, is_nonsense=False)

    def _nonsense(self) -> Waiter:
        pick = self.chance
        one = self._waiter(pick.choice(self.world.transfers))
        wrong = pick.choice(
            [
                {"transfer_id": pick.choice(NO_TRANSFER)},
                {"poke_interval": pick.choice(NO_INTERVAL)},
                {"deadline": pick.choice(NO_DEADLINE)},
                {"rules": {"on_expiry": "fail"}},
            ]
        )
        one.kwargs |= wrong
        one.is_nonsense = True
        return one

    # ------------------------------------------------------------------------------------------------------ playing it

    async def play(self) -> None:
        async with self.world.serving() as url:
            with mock.patch.dict(os.environ, {"AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": connection_to(url)}):
                for begins, off in self.clock:
                    self.world.at(begins, lambda off=off: self._set_clock(off))
                for stop in [*self.restarts, END]:
                    if self.world.now < stop:
                        await self._one_life(stop)
                        await asyncio.sleep(self.chance.choice([1.0, 60.0, 600.0]))

    async def _one_life(self, stop: float) -> None:
        triggerer, before = Triggerer(), len(self.world.done)
        running: dict[int, Waiter] = {}
        for waiter in self.waiters:
            waiter.overdue = None if waiter.payload is None else waiter.overdue
        while self.world.now < stop:
            for waiter in self._joining(running):
                (number,) = await triggerer.start(Stored(waiter.kwargs))
                running[number] = waiter
            leaving = [number for number, waiter in running.items() if waiter.leaves <= self.world.now]
            await triggerer.cancel(*leaving)
            await asyncio.sleep(LOOK)
            self._note_overdue()
            await triggerer.collect()
            for number in triggerer.events.keys() & running.keys():
                running[number].payload, running[number].at = triggerer.events[number][0].payload, self.world.now
            for number in triggerer.failed.keys() & running.keys():
                if not running[number].is_nonsense:
                    self.broken.append(f"a trigger failed: {triggerer.failed[number]!r}")
                running[number].payload = {"status": "failed", "transfer": None}
            for number in (*leaving, *((triggerer.events.keys() | triggerer.failed.keys()) & running.keys())):
                running.pop(number, None)
        await triggerer.stop()
        self._judge_requests(self.world.done[before:])

    def _joining(self, running: dict[int, Waiter]) -> list[Waiter]:
        now, there = self.world.now, {id(waiter) for waiter in running.values()}
        return [
            waiter
            for waiter in self.waiters
            if waiter.payload is None and waiter.joins <= now < waiter.leaves and id(waiter) not in there
        ]

    def _note_overdue(self) -> None:
        for waiter in self.waiters:
            is_there = waiter.payload is None and waiter.joins <= self.world.now
            # which has microseconds
            if is_there and self.world.now + self.world.off >= waiter.deadline - 0.001:
                waiter.ever_overdue = True
                if waiter.overdue is None:
                    waiter.overdue = self.world.now - LOOK

    # ------------------------------------------------------------------------------------------------------ judging it

    def judge(self) -> None:
        by_id = {one.id: one for one in self.world.transfers}
        for waiter in self.waiters:
            self._judge_waiter(waiter, by_id[waiter.transfer_id])

    def _judge_requests(self, done: list[float]) -> None:
        self.counts["requests"] += len(done)
        most = max((bisect_left(done, at + PERIOD) - n for n, at in enumerate(done)), default=0)
        if most > MAX_REQUESTS:
            self.broken.append(f"{most} requests in {PERIOD:.0f} seconds")

    def _judge_waiter(self, waiter: Waiter, one: Sent) -> None:
        who = f"the wait for {one} until {waiter.deadline:.0f}, {waiter.kwargs}"
        ending, seen = (waiter.payload["status"], waiter.payload["transfer"]) if waiter.payload else ("waiting", None)
        self.counts[ending] += 1
        if waiter.is_nonsense and waiter.joins < END:
            self._expect(ending in ("failed", "error"), f"{who}, which is none, is {ending}")
        elif ending == "waiting" and waiter.leaves > END:
            can_be_told = one.can_be_told() and max(one.ends, CALM, waiter.joins) + BOUND < END
            self._expect(not can_be_told, f"{who} was not told")
            deadline = waiter.deadline - self.world.off
            self._expect(max(deadline, CALM, waiter.joins) + BOUND > END, f"{who} was not given up")
        elif ending == "finished":
            is_true = seen["id"] == one.id and seen["status"] == one.final and waiter.at >= one.ends
            self._expect(is_true, f"{who} ended at {waiter.at:.0f} by {seen}")
            self._expect(waiter.at <= max(one.ends, CALM, waiter.joins) + BOUND, f"{who} was told at {waiter.at:.0f}")
        elif ending == "timeout":
            self._judge_timeout(waiter, one, who)
        else:
            self._expect(ending == "waiting", f"{who} {ending} at {waiter.at:.0f}: {waiter.payload}")

    def _expect(self, is_kept: bool, otherwise: str) -> None:
        if not is_kept:
            self.broken.append(otherwise)

    def _judge_timeout(self, waiter: Waiter, one: Sent, who: str) -> None:
        if not waiter.ever_overdue or waiter.overdue is None:
            self.broken.append(f"{who} timed out at {waiter.at:.0f}, before its deadline")
        elif not any(waiter.overdue <= at <= waiter.at for at in self.world.asked):
            self.broken.append(f"{who} timed out at {waiter.at:.0f} without a last look since {waiter.overdue:.0f}")
        elif waiter.overdue > CALM + BOUND and one.ends < waiter.overdue and one.can_be_told():
            self.broken.append(f"{who} timed out at {waiter.at:.0f}, though the last look could be had")


@dataclass
class Stored:
    """A trigger as it is stored, whatever its arguments are."""

    kwargs: dict[str, Any]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{TransferTrigger.__module__}.{TransferTrigger.__qualname__}", self.kwargs


def connection_to(url: str) -> str:
    return json.dumps({"conn_type": "outbound_transfer", "host": url, "password": "key", "extra": {"timeout": 5}})


def play(seed: int) -> PollScenario:
    """One scenario, judged."""
    scenario = PollScenario(seed)
    random.seed(seed)  # of the backoffs
    with scenario.world.clock.running():
        scenario.world.clock.run(scenario.play())
    scenario.judge()
    return scenario


def fuzz_poll(
    seed: int, *, seconds: float = float("inf"), examples: float = float("inf")
) -> Iterator[tuple[int, PollScenario]]:
    """Stories of one seed after the other, until the time is up or there were so many."""
    until = time.monotonic() + seconds
    while examples > 0 and time.monotonic() < until:
        yield seed, play(seed)
        seed, examples = seed + 1, examples - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds")
    arguments = parser.parse_args()
    be_quiet()
    played, broken, counts = 0, 0, Counter[str]()
    for seed, scenario in fuzz_poll(arguments.seed, seconds=arguments.seconds):
        played, counts = played + 1, counts + scenario.counts
        if scenario.broken:
            broken += 1
            print(f"BROKEN with seed {seed}", *scenario.broken[:5], sep="\n    ", flush=True)
    print(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    print(f"{played:,} scenarios, {broken} broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
