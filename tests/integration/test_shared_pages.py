"""Polls of several processes over real databases and the sandbox, in virtual time that all of them share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.client import Settings
from outbound_transfer.cluster import database
from outbound_transfer.polling import poller
from outbound_transfer.polling.hints import HINT_INTERVAL, LAST_RARE_INTERVAL
from outbound_transfer.polling.waiters import Waiter
from outbound_transfer.warehouse.key_allowance import READ_SECONDS
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.waiters import RECIPIENT, send
from support.feed_pages import event, page, tables
from support.timeouts import TEST_TIMEOUT, eventually
from support.virtual_cluster import KEY, SharedTables, VirtualProcess, VirtualTime
from support.warehouses import Hook


@pytest.fixture(params=["sqlite", "psycopg", "psycopg2", "mysqlclient"])
def shared_hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    """Every database that processes can share."""
    return hook_of(request.param)


@pytest.fixture
def sqlite(hook_of: Callable[[str], Hook]) -> Hook:
    return hook_of("sqlite")


class Cluster:
    """Processes, their database, the feed that lands in it and the service, for one test."""

    def __init__(self, sandbox: Sandbox, hook: Hook) -> None:
        self.sandbox, self.hook = sandbox, hook
        self.time = VirtualTime(time.time(), on_advance=self._owe)
        self.tables = SharedTables(hook, self.time)
        self.processes: list[VirtualProcess] = []
        self.feed = tables(hook, KEY.account)
        self.owed = 60.0  # the service's window has forgotten the sends
        self.calls_before = len(sandbox.requests())

    def start(self, count: int) -> list[VirtualProcess]:
        new = [
            VirtualProcess(f"p{len(self.processes) + number}", self.time, self.tables, self._settings)
            for number in range(count)
        ]
        self.processes += new
        return new

    def _owe(self, seconds: float) -> None:
        self.owed += seconds

    def pay(self) -> None:
        self.sandbox.advance_clock(self.owed)
        self.owed = 0.0

    async def _settings(self) -> Settings:
        self.pay()  # a poll starts
        return Settings(f"{self.sandbox.base_url}/", self.sandbox.transfer_api_key)

    def pick_up(self, *transfer_ids: str) -> None:
        self.pay()
        for one in transfer_ids:
            self.sandbox.pickup(one, RECIPIENT)

    def land(self, *transfer_ids: str, kind: str = "file_downloaded") -> None:
        """Load a page of the feed with an event for each transfer."""
        cursor = self.feed.get_or_create_cursor()
        lines = [
            event(cursor + number, type=kind, data={"of": [{"id": one}, 7, None]})
            for number, one in enumerate(transfer_ids, 1)
        ]
        self.feed.load_page(page(cursor, *lines))

    async def pass_time(self, seconds: float) -> None:
        until = self.time.now + seconds
        self.time.after(seconds, int)
        await self.time.run(lambda: self.time.now >= until)

    def leap(self, seconds: float) -> None:
        """Let time pass in which no process runs."""
        self.time.now += seconds
        self._owe(seconds)

    async def finish(self, waiters: list[Waiter]) -> None:
        await self.time.run(lambda: all(waiter.result for waiter in waiters))

    def calls(self) -> int:
        """Calls of the service since the last time."""
        before, self.calls_before = self.calls_before, len(self.sandbox.requests())
        return self.calls_before - before


def play(sandbox: Sandbox, hook: Hook, story: Any) -> None:
    async def run() -> None:
        cluster = Cluster(sandbox, hook)
        try:
            await asyncio.wait_for(story(cluster), 5 * TEST_TIMEOUT)
        finally:
            for process in cluster.processes:
                await process.stop()

    asyncio.run(run())


def outcomes(waiters: list[Waiter]) -> set[tuple[str, str]]:
    return {(waiter.result["status"], waiter.result["transfer"]["status"]) for waiter in waiters if waiter.result}


@pytest.mark.any_dialect
def test_one_reads_each_page_and_all_finish(sandbox: Sandbox, shared_hook: Hook) -> None:
    sent = send(sandbox, 60)

    async def story(cluster: Cluster) -> None:
        processes = cluster.start(3)
        waiters = [one for n, process in enumerate(processes) for one in process.wait_for(*sent[n::3])]
        await cluster.pass_time(600)
        assert cluster.calls() <= 10 + 5, "one page a poll, but for the first ones"
        cluster.time.after(7, lambda: cluster.pick_up(*sent[:30]))
        cluster.time.after(200, lambda: sandbox.cancel(sent[30]))
        await cluster.finish([waiter for waiter in waiters if waiter.transfer_id in sent[:31]])
        assert outcomes(waiters) == {("finished", "complete"), ("finished", "canceled")}
        assert cluster.calls() <= 25
        received = [waiter for waiter in waiters if waiter.result and waiter.transfer_id == sent[1]]
        assert received[0].result
        assert [each["email"] for each in received[0].result["transfer"]["recipients"]] == [RECIPIENT]

    play(sandbox, shared_hook, story)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["kill", "freeze", "stop"])
def test_the_others_go_on(sandbox: Sandbox, shared_hook: Hook, fault: str) -> None:
    sent = send(sandbox, 30)

    async def story(cluster: Cluster) -> None:
        first, *others = cluster.start(3)
        waiters = {process: process.wait_for(*sent[n::3]) for n, process in enumerate([first, *others])}
        await cluster.pass_time(100)
        shared_hook.run(
            f"UPDATE outbound_transfer_poll_pages SET page = NULL, read_ms = {int(cluster.time.now * 1_000)}"
        )  # what it was about to read
        if fault == "kill":
            first.kill()
        elif fault == "stop":
            await first.stop()
        else:
            cluster.time.freeze(first, 1_000)
        began = cluster.time.now
        cluster.pick_up(*sent)
        left = [waiter for process in others for waiter in waiters[process]]
        await cluster.finish(left)
        assert cluster.time.now - began <= READ_SECONDS + 60 + 15
        assert outcomes(left) == {("finished", "complete")}
        if fault == "freeze":
            await cluster.finish(waiters[first])
            assert outcomes(waiters[first]) == {("finished", "complete")}

    play(sandbox, shared_hook, story)


def test_a_database_that_is_down(sandbox: Sandbox, sqlite: Hook, caplog: pytest.LogCaptureFixture) -> None:
    sent = send(sandbox, 40)

    async def story(cluster: Cluster) -> None:
        waiters = [one for n, process in enumerate(cluster.start(3)) for one in process.wait_for(*sent[n::3])]
        await cluster.pass_time(120)
        cluster.tables.is_down = True
        cluster.calls()
        await cluster.pass_time(600)
        assert 3 * 8 <= cluster.calls() <= 3 * 12, "each polls alone"
        cluster.pick_up(*sent[:20])
        await cluster.pass_time(75)
        assert sum(waiter.result is not None for waiter in waiters) == 20
        assert caplog.text.count("Could not share the key's calls") == 3
        cluster.tables.is_down = False
        await cluster.pass_time(database.RETRY_INTERVAL + 120)
        cluster.calls()
        await cluster.pass_time(600)
        assert cluster.calls() <= 10 + 5, "they share again"
        cluster.pick_up(*sent[20:])
        await cluster.finish(waiters)

    with caplog.at_level(logging.WARNING):
        play(sandbox, sqlite, story)


def test_a_slow_database_is_not_waited_for(sandbox: Sandbox, sqlite: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = send(sandbox, 6)
    monkeypatch.setattr(database, "TIMEOUT", 0.02)

    async def story(cluster: Cluster) -> None:
        open_warehouse = cluster.tables.open

        def open_slowly() -> Any:
            time.sleep(0.2)
            return open_warehouse()

        processes = cluster.start(2)
        for process in processes:
            process.database.reopen(open_slowly)
        waiters = [one for n, process in enumerate(processes) for one in process.wait_for(*sent[n::2])]
        cluster.time.after(30, lambda: cluster.pick_up(*sent))
        await cluster.finish(waiters)
        assert outcomes(waiters) == {("finished", "complete")}

    play(sandbox, sqlite, story)


@pytest.mark.parametrize("interval", [5.0, 10.0])
def test_a_short_interval_is_kept(sandbox: Sandbox, sqlite: Hook, interval: float) -> None:
    sent = send(sandbox, 60)

    async def story(cluster: Cluster) -> None:
        processes = cluster.start(2)
        waiters = [
            one for n, process in enumerate(processes) for one in process.wait_for(*sent[n::2], interval=interval)
        ]
        await cluster.pass_time(100)
        for waiter in waiters[:5]:
            await cluster.pass_time(31.7)
            began = cluster.time.now
            cluster.pick_up(waiter.transfer_id)
            await cluster.finish([waiter])
            assert cluster.time.now - began <= interval + 1, "no page that the poll before has used"
        cluster.calls()
        await cluster.pass_time(20 * interval)
        assert cluster.calls() <= 20 + 5, "one page a poll"

    play(sandbox, sqlite, story)


def test_a_slow_process_does_not_hold_up_the_others_page_after_page(
    sandbox: Sandbox, sqlite: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.patch_account(requests_per_window=1_000_000, outstanding_transfer_limit=1_000)
    sent = send(sandbox, 500)

    async def story(cluster: Cluster) -> None:
        slow, *others = cluster.start(3)
        perform = slow.poller._perform

        async def perform_slowly(call: Any) -> Any:
            await slow.sleep(80)
            return await perform(call)

        monkeypatch.setattr(slow.poller, "_perform", perform_slowly)
        waiters = [one for n, process in enumerate([slow, *others]) for one in process.wait_for(*sent[n::3])]
        await cluster.pass_time(400)
        left = [waiter for waiter in waiters if waiter.transfer_id in sent[1::3]][:40:10]
        for waiter in left:
            began = cluster.time.now
            cluster.pick_up(waiter.transfer_id)
            await cluster.finish([waiter])
            assert cluster.time.now - began <= 60 + READ_SECONDS + 15
            await cluster.pass_time(37)

    play(sandbox, sqlite, story)


@pytest.mark.any_dialect
def test_what_an_event_names_is_read_first(sandbox: Sandbox, shared_hook: Hook) -> None:
    sent = send(sandbox, 30)

    async def story(cluster: Cluster) -> None:
        cluster.land("before")
        processes = cluster.start(3)
        waiters = [
            one for n, process in enumerate(processes) for one in process.wait_for(*sent[n::3], interval=3_600.0)
        ]
        await cluster.pass_time(100)
        cluster.calls()
        cluster.pick_up(*sent[:3])
        cluster.land(*sent[:3], sent[3])
        began = cluster.time.now
        await cluster.finish(waiters[:1] + waiters[10:11] + waiters[20:21])
        assert cluster.time.now - began <= HINT_INTERVAL + 3 * poller.HINT_INTERVAL
        assert cluster.calls() <= 4
        cluster.land(*sent[4:], "report.csv", kind="transfer_sent")
        await cluster.pass_time(HINT_INTERVAL + 10)
        assert cluster.calls() == 0, "that a transfer was sent says nothing about its end"
        assert {waiter.transfer_id for waiter in waiters if waiter.result} == set(sent[:3])

    play(sandbox, shared_hook, story)


@pytest.mark.nightly
def test_full_polls_become_rare_while_events_name_what_is_picked_up(sandbox: Sandbox, sqlite: Hook) -> None:
    *sent, canceled, late, last = send(sandbox, 200)

    async def story(cluster: Cluster) -> None:
        (process,) = cluster.start(1)
        cluster.land("before")
        waiters = {one.transfer_id: one for one in process.wait_for(*sent, canceled, late, last)}

        async def hour() -> int:
            for one in [sent.pop() for _ in range(60)]:
                cluster.pick_up(one)
                cluster.land(one)
                await cluster.pass_time(60)
            return cluster.calls()

        await hour()
        assert process.poller._times.rare_interval == LAST_RARE_INTERVAL
        assert await hour() <= 60 + 3_600 / LAST_RARE_INTERVAL * 4, (
            "a call for each pickup, and those of few full polls"
        )

        async def seconds_to(transfer_id: str) -> float:
            began = cluster.time.now
            await cluster.finish([waiters[transfer_id]])
            return cluster.time.now - began

        sandbox.cancel(canceled)
        assert await seconds_to(canceled) <= LAST_RARE_INTERVAL + 10
        cluster.pick_up(late)
        assert await seconds_to(late) <= LAST_RARE_INTERVAL + 10
        await cluster.pass_time(200)
        cluster.pick_up(last)
        assert await seconds_to(last) <= 70, "no event has named the pickup, so full polls are as frequent as before"

    play(sandbox, sqlite, story)


def test_the_last_read_before_a_timeout_is_no_page_of_before(sandbox: Sandbox, sqlite: Hook) -> None:
    sent = send(sandbox, 4)

    async def story(cluster: Cluster) -> None:
        first, other = cluster.start(2)
        first.wait_for(*sent[:2])
        await cluster.pass_time(100)
        polled_at = (cluster.time.now // 60 + 2) * 60  # all poll at the full minute
        waiters = other.wait_for(*sent[2:], deadline=polled_at + 8)
        await cluster.pass_time(polled_at + 3 - cluster.time.now)
        cluster.pick_up(*sent[2:])
        await cluster.finish(waiters)
        assert outcomes(waiters) == {("finished", "complete")}

    play(sandbox, sqlite, story)


@pytest.mark.nightly
def test_what_only_a_read_of_its_own_concludes(sandbox: Sandbox, sqlite: Hook) -> None:
    """A deadline, an expiry and an id that the key does not see, beside a process that has read the page."""
    late, *sent = send(sandbox, 10)
    sandbox.patch_account(delivery_window_days=1)
    (expiring,) = send(sandbox, 1)

    async def story(cluster: Cluster) -> None:
        first, other = cluster.start(2)
        first.wait_for(*sent, deadline=cluster.time.now + 10 * 86_400)
        (timed,) = other.wait_for(late, deadline=cluster.time.now + 500)
        (expired, *_) = other.wait_for(expiring, deadline=cluster.time.now + 10 * 86_400, interval=3_600.0)
        (unseen,) = other.wait_for("none")
        await cluster.finish([unseen])
        assert unseen.result
        assert unseen.result["status"] == "error"
        await cluster.finish([timed])
        assert outcomes([timed]) == {("timeout", "pending")}
        assert timed.deadline <= cluster.time.now <= timed.deadline + 5
        await cluster.time.run(lambda: expired.transfer is not None)
        expires_at = expired.expires_at
        cluster.leap(expires_at - 100 - cluster.time.now)
        await cluster.finish([expired])
        assert outcomes([expired]) == {("finished", "expired")}
        assert cluster.time.now <= expires_at + 10

    play(sandbox, sqlite, story)


def test_who_leaves_removes_the_pages(sandbox: Sandbox, shared_hook: Hook) -> None:
    sent = send(sandbox, 2)

    async def story(cluster: Cluster) -> None:
        (process,) = cluster.start(1)
        process.wait_for(*sent)
        await cluster.pass_time(70)
        count = "SELECT count(*) FROM outbound_transfer_poll_pages"
        assert shared_hook.fetch(count) == [(1,)]
        await process.stop()
        eventually(lambda: shared_hook.fetch(count) == [(0,)])  # who leaves does not wait for it

    play(sandbox, shared_hook, story)
