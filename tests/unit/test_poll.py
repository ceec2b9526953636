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

from outbound_transfer.client import Client, Settings
from outbound_transfer.polling import poll
from outbound_transfer.polling.poll import LONGEST_ASKED, LONGEST_SILENCE, SETTLE, News, Poll
from outbound_transfer.polling.schedule import Now
from outbound_transfer.polling.waits import LAST_LOOK, Wait, Waits
from outbound_transfer.polling.watch import Watch
from outbound_transfer.protocol import calls
from outbound_transfer.protocol.exchange import Upload
from outbound_transfer.protocol.models import new_transfer
from outbound_transfer.protocol.outcomes import OutcomeRules
from outbound_transfer_sandbox.testing import Sandbox

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
    waits: Waits = field(default_factory=Waits)
    owed: float = 0.0
    key: str = ""
    told: list[News] = field(default_factory=list)

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
        if seconds != SETTLE:  # a pause within a look, not one of the many between two
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
        transfer = client.perform(calls.create_transfer(new_transfer(subject="Report", recipients=recipients)))
        client.perform(calls.attach_file(transfer.id, Upload("a.csv", 1, lambda: iter([b"a"]))))
        return client.perform(calls.send_transfer(transfer.id)).id

    def wait(self, transfer_id: str, *, timeout: float = DAY, interval: float = 60.0, **rules: Any) -> Wait:
        return Wait(transfer_id, interval, self.now + timeout, OutcomeRules(**rules), looked=self.clock())

    def poll(self) -> Poll:
        return Poll(self.waits, lambda: self.settings(), clock=self.clock, sleep=self.sleep)

    def follow(self, *waits: Wait) -> None:
        """Run a poll until all have ended."""
        self.until(lambda: all(wait.end for wait in waits), *waits)

    def until(self, done: Callable[[], bool], *waits: Wait, watches: tuple[Watch, ...] = ()) -> None:
        async def follow() -> None:
            with contextlib.ExitStack() as stack:
                for wait in waits:
                    stack.enter_context(self.waits.joined(wait))
                for watch in watches:
                    stack.enter_context(self.waits.watched(watch))
                async with contextlib.aclosing(self.poll().news()) as news:
                    async for one in news:
                        self.told.append(one)
                        if done():
                            return

        asyncio.run(asyncio.wait_for(follow(), 60))

    def calls(self) -> list[dict[str, Any]]:
        """What the service was asked since the last send."""
        return self.sandbox.requests()[self.calls_before :]

    def statuses(self) -> Counter[int]:
        return Counter(call["status"] for call in self.calls())


@pytest.fixture
def scene(sandbox: Sandbox) -> Scene:
    return Scene(sandbox)


def ending(wait: Wait) -> tuple[str, str | None]:
    assert wait.end is not None
    return wait.end["ending"], wait.end["transfer"] and wait.end["transfer"]["status"]


def test_a_pickup_ends_the_wait_with_the_transfer_as_listings_have_it(scene: Scene) -> None:
    (sent,) = scene.send(1, ANN, BOB)
    wait = scene.wait(sent)
    scene.after(100, lambda: scene.sandbox.pickup(sent, ANN))
    scene.after(200, lambda: scene.sandbox.pickup(sent, BOB))
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")
    assert wait.end
    assert {one["email"] for one in wait.end["transfer"]["recipients"] if one["picked_up_at"]} == {ANN, BOB}
    assert "files" not in wait.end["transfer"]
    seen = [remark.partition(" is ")[2].partition(":")[0] for remark in wait.remarks]
    assert seen == ["pending", "partial", "complete"]
    assert scene.now - scene.began <= 200 + 60 + 5


def test_three_hundred_waits_cost_the_pages_and_a_page_for_many_ends(scene: Scene) -> None:
    sent = scene.send(300)
    waits = [scene.wait(one) for one in sent]
    for number, one in enumerate(sent):
        scene.after(400 + number, lambda one=one: scene.sandbox.pickup(one, ANN))
    scene.follow(*waits)
    rounds = (scene.now - scene.began) / 60
    assert {ending(wait) for wait in waits} == {("ended", "complete")}
    assert scene.statuses() == {200: len(scene.calls())}
    # Three pages or fewer while all are out; as they end, some pages more of those that have.
    assert len(scene.calls()) <= 3 * rounds + 4 * (300 / 60 + 1) + 60


def test_waits_of_different_intervals_are_looked_at_as_often_as_each_asks_for(scene: Scene) -> None:
    quick, *slow = scene.send(21)
    waits = [scene.wait(quick, interval=10.0), *(scene.wait(one, interval=300.0) for one in slow)]
    scene.after(905, lambda: [scene.sandbox.pickup(one, ANN) for one in (quick, *slow)])
    scene.follow(*waits)
    kinds = Counter(call["path"].count("/") for call in scene.calls())
    assert kinds[3] <= 905 / 10 + 2, "the quick one is read by itself"
    assert kinds[2] <= 2 * (905 / 300 + 2), "the slow ones are listed"


def test_who_joins_late_is_looked_at_with_the_others(scene: Scene) -> None:
    first, second = scene.send(2)
    early, late = scene.wait(first), scene.wait(second)
    joining = contextlib.ExitStack()

    def join() -> None:
        late.looked = scene.clock()
        joining.enter_context(scene.waits.joined(late))

    scene.after(95, join)
    scene.after(96, lambda: scene.sandbox.pickup(second, ANN))
    with joining:
        scene.until(lambda: late.end is not None, early)
    assert scene.now - scene.began <= 122 + 1, "at the next look of the others"
    assert early.end is None


def test_expiry_is_seen_within_seconds(scene: Scene) -> None:
    (sent,) = scene.send()
    scene.sandbox.patch_account(delivery_window_days=1)
    (soon,) = scene.send()
    waits = scene.wait(soon, interval=3_600.0, timeout=10 * DAY), scene.wait(sent, interval=3_600.0, timeout=10 * DAY)
    scene.until(lambda: waits[0].end is not None, *waits)
    assert ending(waits[0]) == ("ended", "expired")
    assert DAY - 5 <= scene.now - scene.began <= DAY + 5


def test_many_that_expire_at_once_are_found_by_the_page(scene: Scene) -> None:
    scene.sandbox.patch_account(delivery_window_days=1)
    waits = [scene.wait(one, interval=6 * 3_600.0, timeout=10 * DAY) for one in scene.send(150)]
    scene.follow(*waits)
    assert {ending(wait) for wait in waits} == {("ended", "expired")}
    assert len(scene.calls()) <= 3 * 5 + 30


def test_a_deadline_is_preceded_by_one_last_look(scene: Scene) -> None:
    (sent,) = scene.send()
    wait = scene.wait(sent, interval=600.0, timeout=1_000.0)
    scene.after(995, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")

    (sent,) = scene.send()
    given_up = scene.wait(sent, interval=600.0, timeout=1_000.0)
    scene.follow(given_up)
    assert ending(given_up) == ("timed out", "pending")
    assert given_up.deadline <= scene.now <= given_up.deadline + 3


def test_a_deadline_is_kept_while_the_service_is_down(scene: Scene) -> None:
    (sent,) = scene.send()
    wait = scene.wait(sent, timeout=300.0)
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 503}] * 200)
    scene.follow(wait)
    assert ending(wait) == ("timed out", None)
    assert wait.deadline + LAST_LOOK <= scene.now <= wait.deadline + LAST_LOOK + 10


FAILURES = [
    {"kind": "error", "status": 500},
    {"kind": "error", "status": 503, "retry_after": "7"},
    {"kind": "error", "status": 429, "retry_after": "3"},
    {"kind": "error", "status": 502, "code": ""},
    {"kind": "reset", "effect": "before"},
    {"kind": "reset", "effect": "after"},
    {"kind": "reset_in_response", "after_bytes": 20},
]


def test_fifty_failures_in_a_row_end_no_wait(scene: Scene) -> None:
    sent = scene.send(30)
    waits = [scene.wait(one) for one in sent]
    scene.sandbox.plan_faults(*(FAILURES[number % len(FAILURES)] for number in range(50 * 3)))
    scene.after(4_000, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waits)
    assert {ending(wait) for wait in waits} == {("ended", "complete")}
    assert [fault["state"] for fault in scene.sandbox.faults()] == ["met"] * 150
    troubles = [news.trouble for news in scene.told if news.trouble]
    assert len(troubles) <= 3, "said when the trouble begins, not at every failure"
    assert "the wait goes on" in troubles[0]


def test_a_failing_service_is_asked_less_and_less(scene: Scene) -> None:
    (sent,) = scene.send()
    wait = scene.wait(sent, timeout=3_600.0)
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 503}] * 1_000)
    scene.follow(wait)
    met = sum(fault["state"] == "met" for fault in scene.sandbox.faults())
    assert 60 <= met <= 3 * (3_600 / 100)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_every_wait_with_a_message_that_helps(scene: Scene, status: int) -> None:
    waits = [scene.wait(one) for one in scene.send(3)]
    if status == 401:
        scene.sandbox.revoke_key(scene.key)
    else:
        scene.sandbox.patch_account(api_enabled=False)
    scene.follow(*waits)
    for wait in waits:
        assert ending(wait) == ("failed", None)
        assert wait.end
        assert ("Check the API key" if status == 401 else "administrator") in wait.end["message"]
        assert scene.key not in wait.end["message"]


def test_a_transfer_that_the_key_does_not_see_ends_its_own_wait_only(scene: Scene) -> None:
    (sent,) = scene.send()
    seen, unseen, nonsense = scene.wait(sent), scene.wait("none"), scene.wait("../keys")
    scene.after(200, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(seen, unseen, nonsense)
    assert ending(seen) == ("ended", "complete")
    assert ending(unseen) == ending(nonsense) == ("failed", None)
    assert unseen.end
    assert "id is unknown" in unseen.end["message"]


def test_a_key_that_is_replaced_meanwhile_is_all_right(scene: Scene) -> None:
    sent = scene.send(30)
    user = scene.sandbox.state()["user"]
    waits = [scene.wait(one) for one in sent]

    def replace() -> None:
        old, scene.key = scene.key, scene.sandbox.new_key(user)
        scene.sandbox.revoke_key(old)

    scene.after(100, replace)
    scene.after(500, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waits)
    assert {ending(wait) for wait in waits} == {("ended", "complete")}


def test_a_key_that_is_replaced_in_the_middle_of_a_look_is_all_right(scene: Scene) -> None:
    sent = scene.send(1)
    user = scene.sandbox.state()["user"]
    scene.sandbox.revoke_key(scene.key)
    answers = iter([scene.key])

    async def settings() -> Settings:
        key = next(answers, None) or scene.sandbox.new_key(user)
        return Settings(f"{scene.sandbox.base_url}/", key)

    scene.settings = settings  # type: ignore[method-assign]
    scene.after(10, lambda: scene.sandbox.pickup(sent[0], ANN))
    wait = scene.wait(sent[0])
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")


def test_an_unlisted_status_is_said_once_and_the_wait_goes_on(scene: Scene) -> None:
    (sent,) = scene.send()
    scene.sandbox.set_stored_status(sent, "from the old days")
    wait = scene.wait(sent, timeout=1_000.0)
    scene.follow(wait)
    assert ending(wait) == ("timed out", "unknown")
    assert len(wait.remarks) == 1
    assert "does not list this status" in wait.remarks[0]


def test_a_draft_is_waited_for_until_it_is_sent_and_collected(scene: Scene) -> None:
    scene.send()
    settings = Settings(f"{scene.sandbox.base_url}/", scene.key)
    with Client(settings) as client:
        draft = client.perform(calls.create_transfer(new_transfer(subject="Later", recipients=[ANN])))
        client.perform(calls.attach_file(draft.id, Upload("a.csv", 1, lambda: iter([b"a"]))))

        def send() -> None:
            client.perform(calls.send_transfer(draft.id))

        scene.after(200, send)
        scene.after(400, lambda: scene.sandbox.pickup(draft.id, ANN))
        wait = scene.wait(draft.id)
        scene.follow(wait)
    assert ending(wait) == ("ended", "complete")


def test_the_key_s_allowance_is_left_to_those_who_send(scene: Scene) -> None:
    # Drafts are not in the listing, so each of these waits takes a read a look: far more than there is room for.
    scene.send()
    scene.sandbox.patch_account(requests_per_window=1_000)
    with Client(Settings(f"{scene.sandbox.base_url}/", scene.key)) as client:
        drafts = [
            client.perform(calls.create_transfer(new_transfer(subject="Later", recipients=[ANN]))).id
            for _ in range(120)
        ]
    scene.sandbox.patch_account(requests_per_window=60)
    scene.sandbox.advance_clock(120)
    scene.calls_before = len(scene.sandbox.requests())
    waits = [scene.wait(one, timeout=1_800.0) for one in drafts]
    scene.follow(*waits)
    assert scene.statuses().keys() == {200}
    assert len(scene.calls()) <= 24 * (scene.now - scene.began) / 60 + 24


def test_a_watch_tells_of_every_end_once_across_restarts(scene: Scene) -> None:
    gone = scene.send(1)[0]
    scene.sandbox.pickup(gone, ANN)
    early = scene.send(3)
    ended: list[str] = []
    watch = Watch(60.0, scene.now)
    state: Any = None

    def take() -> bool:
        nonlocal state
        transfers, changed = watch.take()
        ended.extend(f"{one.id} {one.status}" for one in transfers)
        state = changed or state
        return len(ended) == wanted

    late: list[str] = []
    wanted = 2
    scene.after(100, lambda: scene.sandbox.pickup(early[0], ANN))
    scene.after(200, lambda: late.extend(scene.send(2)))
    scene.after(201, lambda: scene.sandbox.pickup(late[0], ANN))
    scene.until(take, watches=(watch,))
    assert sorted(ended) == sorted([f"{early[0]} complete", f"{late[0]} complete"])

    # Nobody watches while one ends, and one is sent and ends.
    scene.sandbox.cancel(early[1])
    (between,) = scene.send()
    scene.sandbox.pickup(between, ANN)
    watch, wanted = Watch(60.0, scene.now, state), 4
    scene.until(take, watches=(watch,))
    assert sorted(ended[2:]) == sorted([f"{early[1]} canceled", f"{between} complete"])

    watch, wanted = Watch(60.0, scene.now, state), 6
    scene.began = scene.now
    scene.after(300, lambda: [scene.sandbox.pickup(one, ANN) for one in (early[2], late[1])])
    scene.until(take, watches=(watch,))
    assert sorted(ended[4:]) == sorted([f"{early[2]} complete", f"{late[1]} complete"])


# ------------------------------------------------------------------------------ what comes from outside, and the clocks


@pytest.mark.parametrize("seconds", ["86400", "1000000000", "9" * 40, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_one_retry_after_stops_the_waits_for_minutes_at_most(scene: Scene, seconds: str) -> None:
    sent = scene.send(3)
    waits = [scene.wait(one) for one in sent]
    scene.sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": seconds})
    scene.after(10, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waits)
    assert {ending(wait) for wait in waits} == {("ended", "complete")}
    assert scene.now - scene.began <= LONGEST_ASKED + 10


def test_a_retry_after_that_is_said_again_and_again_is_kept_to_step_by_step(scene: Scene) -> None:
    (sent,) = scene.send()
    wait = scene.wait(sent, timeout=3_600.0)
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 429, "retry_after": "1000000000"}] * 1_000)
    scene.follow(wait)
    assert ending(wait) == ("timed out", None)
    met = sum(fault["state"] == "met" for fault in scene.sandbox.faults())
    assert 3_600 / LONGEST_ASKED <= met <= 3_600 / LONGEST_ASKED + 3
    assert scene.now - wait.deadline <= 2 * LONGEST_ASKED + LAST_LOOK


def test_a_deadline_within_a_pause_that_was_asked_for_is_preceded_by_a_look(scene: Scene) -> None:
    (sent,) = scene.send()
    wait = scene.wait(sent, timeout=100.0)
    scene.sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": "1000000000"})
    scene.after(50, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")


@pytest.mark.parametrize("status", [401, 403, 404, 409, 418])
def test_the_word_of_a_proxy_ends_no_wait(scene: Scene, status: int) -> None:
    sent = scene.send(3)
    waits = [scene.wait(one) for one in sent]
    scene.sandbox.plan_faults(*[{"kind": "error", "status": status, "code": ""}] * 20)
    scene.after(900, lambda: [scene.sandbox.pickup(one, ANN) for one in sent])
    scene.follow(*waits)
    assert {ending(wait) for wait in waits} == {("ended", "complete")}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_the_word_of_a_proxy_ends_no_watch(scene: Scene, status: int) -> None:
    (sent,) = scene.send()
    watch, ended = Watch(60.0, scene.now), []
    fault = {"kind": "error", "status": status, "code": ""}
    scene.sandbox.plan_faults(*[fault] * 3)
    scene.after(300, lambda: scene.sandbox.plan_faults(*[fault] * 5))
    scene.after(310, lambda: scene.sandbox.pickup(sent, ANN))
    scene.until(lambda: bool(ended.extend(one.id for one in watch.take()[0]) or ended), watches=(watch,))
    assert ended == [sent]


def set_clock(scene: Scene, seconds: float) -> None:
    scene.off = seconds


@pytest.mark.parametrize("off", [-30 * DAY, -3_600.0, 3_600.0, 30 * DAY])
def test_a_clock_that_is_set_stops_no_looks(scene: Scene, off: float) -> None:
    (sent,) = scene.send()
    wait = scene.wait(sent, timeout=40 * DAY)
    scene.after(100, lambda: set_clock(scene, off))
    scene.after(200, lambda: scene.sandbox.pickup(sent, ANN))
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")
    assert scene.now - scene.began <= 200 + 60 + 5


def test_a_clock_that_jumps_past_a_deadline_ends_no_wait_without_a_look(scene: Scene) -> None:
    (sent,) = scene.send()
    wait = scene.wait(sent, interval=3_000.0)
    scene.after(100, lambda: scene.sandbox.pickup(sent, ANN))
    scene.after(101, lambda: scene.sandbox.plan_faults({"kind": "error", "status": 503}))
    scene.after(102, lambda: set_clock(scene, 10 * DAY))
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")
    assert scene.now - scene.began <= 120


def test_a_deadline_that_passed_while_no_process_was_there_is_followed_by_a_look(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sent,) = scene.send()
    scene.sandbox.pickup(sent, ANN)
    monkeypatch.setattr(poll, "SETTLE", 0.02)
    scene.sandbox.plan_faults({"kind": "error", "status": 503}, {"kind": "delay", "seconds": 0.3, "effect": "after"})
    wait = scene.wait(sent, timeout=-3_600.0)
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")


def test_a_last_look_under_way_is_not_broken_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (sent,) = scene.send()
    monkeypatch.setattr(poll, "SETTLE", 0.02)
    wait = scene.wait(sent, timeout=0.0)
    scene.sandbox.pickup(sent, ANN)
    # Within the look, so it is paced by the service for longer than a last look is repeated.
    scene.sandbox.plan_faults(*[{"kind": "error", "status": 429, "retry_after": "60"}] * 3)
    scene.follow(wait)
    assert ending(wait) == ("ended", "complete")
    assert scene.now > wait.deadline + 3 * LAST_LOOK


def test_a_look_that_hears_nothing_is_broken_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (sent,) = scene.send()
    monkeypatch.setattr(poll, "SETTLE", 0.02)
    scene.sandbox.pickup(sent, ANN)
    answered = scene.settings

    async def silent() -> Settings:
        scene.settings = answered  # type: ignore[method-assign]
        while True:
            scene.now += 10.0
            await asyncio.sleep(0.01)

    scene.settings = silent  # type: ignore[method-assign]
    scene.until(lambda: wait.end is not None, wait := scene.wait(sent))
    assert ending(wait) == ("ended", "complete")
    assert scene.now - scene.began >= LONGEST_SILENCE
