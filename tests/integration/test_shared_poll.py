"""The shared poll over real sockets, in virtual time that it shares with the service."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from outbound_transfer.client import AsyncClient, Client, Settings
from outbound_transfer.polling import poller
from outbound_transfer.polling import watcher as watcher_module
from outbound_transfer.polling.poller import COALESCE_SECONDS, MAX_RETRY_AFTER, PollUpdate, SharedPoller
from outbound_transfer.polling.schedule import Now
from outbound_transfer.polling.waiters import FINAL_POLL_GRACE, Waiter, WaiterRegistry
from outbound_transfer.polling.watcher import CompletionWatcher
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.messages import Upload
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer.protocol.outcomes import OutcomeRules
from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import TEST_TIMEOUT

ANN, BOB = "ann@example.com", "bob@example.com"
DAY = 86_400.0


@dataclass
class Scene:
    """A sandbox, a poll on it, and a clock for both: a sleep takes no time and ends when it should.

    :ivar off: seconds that the machine's clock is off.
    """

    sandbox: Sandbox
    now: float = field(default_factory=time.time)
    off: float = 0.0
    plans: list[tuple[float, Callable[[], Any]]] = field(default_factory=list)
    registry: WaiterRegistry = field(default_factory=WaiterRegistry)
    owed: float = 0.0
    key: str = ""
    updates: list[PollUpdate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = self.sandbox.transfer_api_key
        self.began = self.now

    async def settings(self) -> Settings:
        self._pay()  # a look begins
        return Settings(f"{self.sandbox.base_url}/", self.key)

    def clock(self) -> Now:
        return Now(self.now, self.now + self.off)

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [plan for plan in self.plans if plan[0] <= until]:
            plan = min(due, key=lambda one: one[0])
            self.plans.remove(plan)
            self._advance(max(plan[0] - self.now, 0.0))
            self._pay()
            plan[1]()
        self._advance(until - self.now)
        if seconds != COALESCE_SECONDS:  # a pause within a look, not one of the many between two
            self._pay()
        await asyncio.sleep(0)

    def _advance(self, seconds: float) -> None:
        self.now += seconds
        self.owed += seconds

    def _pay(self) -> None:
        self.sandbox.advance_clock(self.owed)
        self.owed = 0.0

    def after(self, seconds: float, action: Callable[[], Any]) -> None:
        self.plans.append((self.began + seconds, action))

    def send(self, count: int = 1, *recipients: str) -> list[str]:
        """Send so many transfers, outside the allowance."""
        limit = self.sandbox.state()["account"]["requests_per_window"]
        self.sandbox.patch_account(requests_per_window=1_000_000, outstanding_transfer_limit=1_000_000)
        with Client(Settings(f"{self.sandbox.base_url}/", self.sandbox.transfer_api_key)) as client:
            sent = [self._send(client, recipients or (ANN,)) for _ in range(count)]
        self.sandbox.advance_clock(60)  # the service's window has forgotten these
        self.sandbox.patch_account(requests_per_window=limit)
        self.calls_before = len(self.sandbox.requests())
        return sent

    @staticmethod
    def _send(client: Client, recipients: tuple[str, ...]) -> str:
        transfer = client.perform(
            endpoints.create_transfer(build_new_transfer(subject="Report", recipients=recipients))
        )
        client.perform(endpoints.attach_file(transfer.id, Upload("a.csv", 1, lambda: iter([b"a"]))))
        return client.perform(endpoints.send_transfer(transfer.id)).id

    def waiter(self, transfer_id: str, *, timeout: float = DAY, interval: float = 60.0, **rules: Any) -> Waiter:
        return Waiter(transfer_id, interval, self.now + timeout, OutcomeRules(**rules), polled_at=self.clock())

    def poller(self) -> SharedPoller:
        return SharedPoller(self.registry, lambda: self.settings(), clock=self.clock, sleep=self.sleep)

    def follow(self, *waiters: Waiter) -> None:
        """Run a poll until all have ended."""
        self.until(lambda: all(waiter.result for waiter in waiters), *waiters)

    def until(self, done: Callable[[], bool], *waiters: Waiter, watchers: tuple[CompletionWatcher, ...] = ()) -> None:
        async def follow() -> None:
            with contextlib.ExitStack() as stack:
                for waiter in waiters:
                    stack.enter_context(self.registry.register(waiter))
                for watcher in watchers:
                    stack.enter_context(self.registry.register_watcher(watcher))
                async with contextlib.aclosing(self.poller().updates()) as updates:
                    async for update in updates:
                        self.updates.append(update)
                        if done():
                            return

        asyncio.run(asyncio.wait_for(follow(), TEST_TIMEOUT))

    def calls(self) -> list[dict[str, Any]]:
        """What the service was asked since the last send."""
        return self.sandbox.requests()[self.calls_before :]

    def statuses(self) -> Counter[int]:
        return Counter(call["status"] for call in self.calls())


@pytest.fixture
def scene(sandbox: Sandbox) -> Scene:
    return Scene(sandbox)


def outcome(waiter: Waiter) -> tuple[str, str | None]:
    assert waiter.result is not None
    return waiter.result["status"], waiter.result["transfer"] and waiter.result["transfer"]["status"]


def test_pickup_finishes_the_waiter_with_the_listed_transfer(scene: Scene) -> None:
    (sent,) = scene.send(1, ANN, BOB)
    waiter = scene.waiter(sent)
    scene.after(100, lambda: scene.sandbox.pickup(sent, ANN))
    scene.after(200, lambda: scene.sandbox.pickup(sent, BOB))
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")
    assert waiter.result
    assert {one["email"] for one in waiter.result["transfer"]["recipients"] if one["picked_up_at"]} == {ANN, BOB}
    assert "files" not in waiter.result["transfer"]
    seen = [message.partition(" is ")[2].partition(":")[0] for message in waiter.log_messages]
    assert seen == ["pending", "partial", "complete"]
    assert scene.now - scene.began <= 200 + 60 + 5


@pytest.mark.slow
def test_requests_of_three_hundred_waiters(scene: Scene) -> None:
    sent = scene.send(300)
    waiters = [scene.waiter(one) for one in sent]
    for number, one in enumerate(sent):
        scene.after(400 + number, lambda one=one: scene.sandbox.pickup(one, ANN))
    scene.follow(*waiters)
    rounds = (scene.now - scene.began) / 60
    assert {outcome(waiter) for waiter in waiters} == {("finished", "complete")}
    assert scene.statuses() == {200: len(scene.calls())}
    # Three pages or fewer while all are out; as they end, some pages more of those that have.
    assert len(scene.calls()) <= 3 * rounds + 4 * (300 / 60 + 1) + 60


def test_waiters_of_different_intervals_are_polled_at_their_own_rate(scene: Scene) -> None:
    quick, *slow = scene.send(21)
    waiters = [scene.waiter(quick, interval=10.0), *(scene.waiter(one, interval=300.0) for one in slow)]
    scene.after(905, lambda: [scene.sandbox.pickup(one, ANN) for one in (quick, *slow)])
    scene.follow(*waiters)
    kinds = Counter(call["path"].count("/") for call in scene.calls())
    assert kinds[3] <= 905 / 10 + 2, "the quick one is read by itself"
    assert kinds[2] <= 2 * (905 / 300 + 2), "the slow ones are listed"


def test_late_waiter_is_polled_with_the_others(scene: Scene) -> None:
    first, second = scene.send(2)
    early, late = scene.waiter(first), scene.waiter(second)
    joining = contextlib.ExitStack()

    def join() -> None:
        late.polled_at = scene.clock()
        joining.enter_context(scene.registry.register(late))

    scene.after(95, join)
    scene.after(96, lambda: scene.sandbox.pickup(second, ANN))
    with joining:
        scene.until(lambda: late.result is not None, early)
    assert scene.now - scene.began <= 122 + 1, "at the next look of the others"
    assert early.result is None


def test_expiry_is_seen_within_seconds(scene: Scene) -> None:
    (sent,) = scene.send()
    scene.sandbox.patch_account(delivery_window_days=1)
    (soon,) = scene.send()
    waiters = (
        scene.waiter(soon, interval=3_600.0, timeout=10 * DAY),
        scene.waiter(sent, interval=3_600.0, timeout=10 * DAY),
    )
    scene.until(lambda: waiters[0].result is not None, *waiters)
    assert outcome(waiters[0]) == ("finished", "expired")
    assert DAY - 5 <= scene.now - scene.began <= DAY + 5


@pytest.mark.slow
def test_many_expired_transfers_are_found_by_status_page(scene: Scene) -> None:
    scene.sandbox.patch_account(delivery_window_days=1)
    waiters = [scene.waiter(one, interval=6 * 3_600.0, timeout=10 * DAY) for one in scene.send(150)]
    scene.follow(*waiters)
    assert {outcome(waiter) for waiter in waiters} == {("finished", "expired")}
    assert len(scene.calls()) <= 3 * 5 + 30


def test_final_poll_precedes_a_timeout(scene: Scene) -> None:
    (sent,) = scene.send()
    waiter = scene.waiter(sent, interval=600.0, timeout=1_000.0)
    scene.after(995, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")

    (sent,) = scene.send()
    given_up = scene.waiter(sent, interval=600.0, timeout=1_000.0)
    scene.follow(given_up)
    assert outcome(given_up) == ("timeout", "pending")
    assert given_up.deadline <= scene.now <= given_up.deadline + 3


def test_waiter_times_out_while_the_service_is_down(scene: Scene) -> None:
    (sent,) = scene.send()
    waiter = scene.waiter(sent, timeout=300.0)
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 503}] * 200)
    scene.follow(waiter)
    assert outcome(waiter) == ("timeout", None)
    assert waiter.deadline + FINAL_POLL_GRACE <= scene.now <= waiter.deadline + FINAL_POLL_GRACE + 10


FAILURES = [
    {"kind": "error", "status": 500},
    {"kind": "error", "status": 503, "retry_after": "7"},
    {"kind": "error", "status": 429, "retry_after": "3"},
    {"kind": "error", "status": 502, "code": ""},
    {"kind": "reset", "effect": "before"},
    {"kind": "reset", "effect": "after"},
    {"kind": "reset_in_response", "after_bytes": 20},
]


def test_fifty_failures_in_a_row_finish_no_waiter(scene: Scene) -> None:
    sent = scene.send(30)
    waiters = [scene.waiter(one) for one in sent]
    scene.sandbox.plan_faults(*(FAILURES[number % len(FAILURES)] for number in range(50 * 3)))
    scene.after(4_000, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waiters)
    assert {outcome(waiter) for waiter in waiters} == {("finished", "complete")}
    assert [fault["state"] for fault in scene.sandbox.faults()] == ["triggered"] * 150
    warnings = [update.warning for update in scene.updates if update.warning]
    assert len(warnings) <= 3, "logged for the first of several failures only"
    assert "the wait continues" in warnings[0]


def test_failing_service_is_polled_less_often(scene: Scene) -> None:
    (sent,) = scene.send()
    waiter = scene.waiter(sent, timeout=3_600.0)
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 503}] * 1_000)
    scene.follow(waiter)
    met = sum(fault["state"] == "triggered" for fault in scene.sandbox.faults())
    assert 60 <= met <= 3 * (3_600 / 100)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_key_finishes_every_waiter_with_a_helpful_message(scene: Scene, status: int) -> None:
    waiters = [scene.waiter(one) for one in scene.send(3)]
    if status == 401:
        scene.sandbox.revoke_key(scene.key)
    else:
        scene.sandbox.patch_account(api_enabled=False)
    scene.follow(*waiters)
    for waiter in waiters:
        assert outcome(waiter) == ("error", None)
        assert waiter.result
        assert ("Check the API key" if status == 401 else "administrator") in waiter.result["message"]
        assert scene.key not in waiter.result["message"]


def test_invisible_transfer_finishes_only_its_own_waiter(scene: Scene) -> None:
    (sent,) = scene.send()
    seen, unseen, nonsense = scene.waiter(sent), scene.waiter("none"), scene.waiter("../keys")
    scene.after(200, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(seen, unseen, nonsense)
    assert outcome(seen) == ("finished", "complete")
    assert outcome(unseen) == outcome(nonsense) == ("error", None)
    assert unseen.result
    assert "id is unknown" in unseen.result["message"]


def test_key_may_be_replaced_between_polls(scene: Scene) -> None:
    sent = scene.send(30)
    user = scene.sandbox.state()["user"]
    waiters = [scene.waiter(one) for one in sent]

    def replace() -> None:
        old, scene.key = scene.key, scene.sandbox.new_key(user)
        scene.sandbox.revoke_key(old)

    scene.after(100, replace)
    scene.after(500, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waiters)
    assert {outcome(waiter) for waiter in waiters} == {("finished", "complete")}


def test_key_may_be_replaced_during_a_poll(scene: Scene) -> None:
    sent = scene.send(1)
    user = scene.sandbox.state()["user"]
    scene.sandbox.revoke_key(scene.key)
    answers = iter([scene.key])

    async def settings() -> Settings:
        key = next(answers, None) or scene.sandbox.new_key(user)
        return Settings(f"{scene.sandbox.base_url}/", key)

    scene.settings = settings  # type: ignore[method-assign]
    scene.after(10, lambda: scene.sandbox.pickup(sent[0], ANN))
    waiter = scene.waiter(sent[0])
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")


def test_unknown_status_is_logged_once_and_the_wait_continues(scene: Scene) -> None:
    (sent,) = scene.send()
    scene.sandbox.set_stored_status(sent, "from the old days")
    waiter = scene.waiter(sent, timeout=1_000.0)
    scene.follow(waiter)
    assert outcome(waiter) == ("timeout", "unknown")
    assert len(waiter.log_messages) == 1
    assert "unknown to this version of the provider" in waiter.log_messages[0]


def test_draft_is_waited_for_until_it_is_sent_and_picked_up(scene: Scene) -> None:
    scene.send()
    settings = Settings(f"{scene.sandbox.base_url}/", scene.key)
    with Client(settings) as client:
        draft = client.perform(endpoints.create_transfer(build_new_transfer(subject="Later", recipients=[ANN])))
        client.perform(endpoints.attach_file(draft.id, Upload("a.csv", 1, lambda: iter([b"a"]))))

        def send() -> None:
            client.perform(endpoints.send_transfer(draft.id))

        scene.after(200, send)
        scene.after(400, lambda: scene.sandbox.pickup(draft.id, ANN))
        waiter = scene.waiter(draft.id)
        scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")


def test_polls_leave_most_of_the_rate_limit_to_deliveries(scene: Scene) -> None:
    # Drafts are not in the listing, so each of these waits takes a read a look: far more than there is room for.
    scene.send()
    scene.sandbox.patch_account(requests_per_window=1_000)
    with Client(Settings(f"{scene.sandbox.base_url}/", scene.key)) as client:
        drafts = [
            client.perform(endpoints.create_transfer(build_new_transfer(subject="Later", recipients=[ANN]))).id
            for _ in range(120)
        ]
    scene.sandbox.patch_account(requests_per_window=60)
    scene.sandbox.advance_clock(120)
    scene.calls_before = len(scene.sandbox.requests())
    waiters = [scene.waiter(one, timeout=1_800.0) for one in drafts]
    scene.follow(*waiters)
    assert scene.statuses().keys() == {200}
    assert len(scene.calls()) <= 24 * (scene.now - scene.began) / 60 + 24


def test_watcher_reports_each_transfer_once_across_restarts(scene: Scene) -> None:
    gone = scene.send(1)[0]
    scene.sandbox.pickup(gone, ANN)
    early = scene.send(3)
    ended: list[str] = []
    watcher = CompletionWatcher(60.0, scene.now)
    state: Any = None

    def drain() -> bool:
        nonlocal state
        transfers, changed = watcher.drain()
        ended.extend(f"{one.id} {one.status}" for one in transfers)
        state = changed or state
        return len(ended) == wanted

    late: list[str] = []
    wanted = 2
    scene.after(100, lambda: scene.sandbox.pickup(early[0], ANN))
    scene.after(200, lambda: late.extend(scene.send(2)))
    scene.after(201, lambda: scene.sandbox.pickup(late[0], ANN))
    scene.until(drain, watchers=(watcher,))
    assert sorted(ended) == sorted([f"{early[0]} complete", f"{late[0]} complete"])

    # Nobody watches while one ends, and one is sent and ends.
    scene.sandbox.cancel(early[1])
    (between,) = scene.send()
    scene.sandbox.pickup(between, ANN)
    watcher, wanted = CompletionWatcher(60.0, scene.now, state), 4
    scene.until(drain, watchers=(watcher,))
    assert sorted(ended[2:]) == sorted([f"{early[1]} canceled", f"{between} complete"])

    watcher, wanted = CompletionWatcher(60.0, scene.now, state), 6
    scene.began = scene.now
    scene.after(300, lambda: [scene.sandbox.pickup(one, ANN) for one in (early[2], late[1])])
    scene.until(drain, watchers=(watcher,))
    assert sorted(ended[4:]) == sorted([f"{early[2]} complete", f"{late[1]} complete"])


def reported(scene: Scene, watcher: CompletionWatcher, count: int) -> list[str]:
    """Run a poll until the watcher has reported so many transfers; return their ids."""
    ended: list[str] = []

    def is_done() -> bool:
        ended.extend(one.id for one in watcher.drain()[0])
        return len(ended) >= count

    scene.until(is_done, watchers=(watcher,))
    return ended


def test_watcher_outlives_a_key_of_another_user(scene: Scene) -> None:
    sent, alice = scene.send(30), scene.key
    scene.after(200, lambda: setattr(scene, "key", scene.sandbox.new_key("bob@example.com")))
    scene.after(500, lambda: setattr(scene, "key", alice))
    scene.after(700, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    assert sorted(reported(scene, CompletionWatcher(60.0, scene.now), 30)) == sorted(sent)
    assert scene.now - scene.began <= 700 + 2 * 60 + 5


def test_watcher_outlives_a_404(scene: Scene) -> None:
    (sent,) = scene.send()
    fault = {"kind": "error", "method": "GET", "path": f"/v1/transfers/{sent}", "status": 404}
    scene.after(200, lambda: scene.sandbox.plan_faults(fault))
    scene.after(700, lambda: scene.sandbox.pickup(sent, ANN))
    assert reported(scene, CompletionWatcher(60.0, scene.now), 1) == [sent]
    assert [fault["state"] for fault in scene.sandbox.faults()] == ["triggered"]


def test_deleted_transfers_cost_a_watcher_few_reads_and_are_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "MAX_MISSING", 3 * 3_600.0)
    gone = [f"gone{number}" for number in range(poller.MAX_MISSING_READS + 10)]
    scene.sandbox.pickup(scene.send()[0], ANN)
    watcher = CompletionWatcher(
        300.0, scene.now, {"since": scene.now, "outstanding": dict.fromkeys(gone, 0.0), "recent": {}}
    )
    scene.until(lambda: watcher.drain() is not None and not watcher.outstanding, watchers=(watcher,))
    assert 3 <= (scene.now - scene.began) / 3_600 <= 5
    assert 5 * len(gone) <= scene.statuses()[404] <= 12 * len(gone)
    polls = "".join("x" if call["status"] == 404 else " " for call in scene.calls()).split()
    assert max(len(poll) for poll in polls[1:]) <= poller.MAX_MISSING_READS, "all at once only in the first poll"


# ------------------------------------------------------------------------------ what comes from outside, and the clocks


@pytest.mark.parametrize("seconds", ["86400", "1000000000", "9" * 40, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_one_retry_after_stops_polls_for_minutes_at_most(scene: Scene, seconds: str) -> None:
    sent = scene.send(3)
    waiters = [scene.waiter(one) for one in sent]
    scene.sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": seconds})
    scene.after(10, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waiters)
    assert {outcome(waiter) for waiter in waiters} == {("finished", "complete")}
    assert scene.now - scene.began <= MAX_RETRY_AFTER + 10


def test_repeated_retry_after_is_obeyed_step_by_step(scene: Scene) -> None:
    (sent,) = scene.send()
    waiter = scene.waiter(sent, timeout=3_600.0)
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 429, "retry_after": "1000000000"}] * 1_000)
    scene.follow(waiter)
    assert outcome(waiter) == ("timeout", None)
    met = sum(fault["state"] == "triggered" for fault in scene.sandbox.faults())
    assert 3_600 / MAX_RETRY_AFTER <= met <= 3_600 / MAX_RETRY_AFTER + 3
    assert scene.now - waiter.deadline <= 2 * MAX_RETRY_AFTER + FINAL_POLL_GRACE


def test_final_poll_precedes_a_timeout_within_a_retry_after(scene: Scene) -> None:
    (sent,) = scene.send()
    waiter = scene.waiter(sent, timeout=100.0)
    scene.sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": "1000000000"})
    scene.after(50, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")


@pytest.mark.parametrize("status", [401, 403, 404, 409, 418])
def test_error_of_a_proxy_finishes_no_waiter(scene: Scene, status: int) -> None:
    sent = scene.send(3)
    waiters = [scene.waiter(one) for one in sent]
    scene.sandbox.plan_faults(*[{"kind": "error", "status": status, "code": ""}] * 20)
    scene.after(900, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waiters)
    assert {outcome(waiter) for waiter in waiters} == {("finished", "complete")}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_error_of_a_proxy_stops_no_watcher(scene: Scene, status: int) -> None:
    (sent,) = scene.send()
    watcher, ended = CompletionWatcher(60.0, scene.now), []
    fault = {"kind": "error", "status": status, "code": ""}
    scene.sandbox.plan_faults(*[fault] * 3)
    scene.after(300, lambda: scene.sandbox.plan_faults(*[fault] * 5))
    scene.after(310, lambda: scene.sandbox.pickup(sent, ANN))
    scene.until(lambda: bool(ended.extend(one.id for one in watcher.drain()[0]) or ended), watchers=(watcher,))
    assert ended == [sent]


def set_clock(scene: Scene, seconds: float) -> None:
    scene.off = seconds


@pytest.mark.parametrize("off", [-30 * DAY, -3_600.0, 3_600.0, 30 * DAY])
def test_setting_the_clock_stops_no_polls(scene: Scene, off: float) -> None:
    (sent,) = scene.send()
    waiter = scene.waiter(sent, timeout=40 * DAY)
    scene.after(100, lambda: set_clock(scene, off))
    scene.after(200, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")
    assert scene.now - scene.began <= 200 + 60 + 5


def test_clock_that_jumps_past_a_deadline_times_out_only_after_a_poll(scene: Scene) -> None:
    (sent,) = scene.send()
    waiter = scene.waiter(sent, interval=3_000.0)
    scene.after(100, lambda: scene.sandbox.pickup(sent, ANN))
    scene.after(101, lambda: scene.sandbox.plan_faults({"kind": "error", "status": 503}))
    scene.after(102, lambda: set_clock(scene, 10 * DAY))
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")
    assert scene.now - scene.began <= 120


def test_deadline_that_passed_without_a_process_is_followed_by_a_poll(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sent,) = scene.send()
    scene.sandbox.pickup(sent, ANN)
    monkeypatch.setattr(poller, "COALESCE_SECONDS", 0.02)
    scene.sandbox.plan_faults({"kind": "error", "status": 503}, {"kind": "delay", "seconds": 0.3, "effect": "after"})
    waiter = scene.waiter(sent, timeout=-3_600.0)
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")


def test_running_final_poll_is_not_canceled(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (sent,) = scene.send()
    monkeypatch.setattr(poller, "COALESCE_SECONDS", 0.02)
    waiter = scene.waiter(sent, timeout=0.0)
    scene.sandbox.pickup(sent, ANN)
    # Within the look, so it is paced by the service for longer than a last look is repeated.
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 429, "retry_after": "60"}] * 3)
    scene.follow(waiter)
    assert outcome(waiter) == ("finished", "complete")
    assert scene.now > waiter.deadline + 3 * FINAL_POLL_GRACE


@pytest.mark.parametrize("silent", ["Airflow", "service"])
def test_poll_without_a_response_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    (sent,) = scene.send()
    monkeypatch.setattr(poller, "COALESCE_SECONDS", 0.02)
    give_up_after = poller._giving_up_after
    monkeypatch.setattr(poller, "_giving_up_after", lambda seconds: give_up_after(seconds / 1_000))
    scene.sandbox.pickup(sent, ANN)
    settings, perform = scene.settings, AsyncClient.perform

    async def never(*_: object) -> Any:
        scene.settings = settings  # type: ignore[method-assign]
        monkeypatch.setattr(AsyncClient, "perform", perform)
        await asyncio.Event().wait()

    if silent == "Airflow":
        scene.settings = never  # type: ignore[method-assign]
    else:
        monkeypatch.setattr(AsyncClient, "perform", never)
    scene.until(lambda: waiter.result is not None, waiter := scene.waiter(sent))
    assert outcome(waiter) == ("finished", "complete")
