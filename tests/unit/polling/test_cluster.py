"""What a process does with what it learns from the others that share its poll."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from outbound_transfer.polling.cluster import ClusterMember
from outbound_transfer.polling.schedule import Now, PollTimes
from outbound_transfer.polling.waiters import TRUST_INTERVAL, Waiter, WaiterRegistry
from outbound_transfer.protocol.errors import MalformedResponse
from outbound_transfer.protocol.listings import ScanResult
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.protocol.outcomes import OutcomeRules
from outbound_transfer.protocol.poll_lease import LEASE_SECONDS, ClusterState, ProcessState, SharedWaiter

START = Now(1_000.0, 1_800_000_000.0)
ORIGIN = START.monotonic + 2.0
SENT_AT, EXPIRES_AT = "2027-01-15T07:00:00Z", "2027-02-15T08:00:00Z"  # an hour before START, and a month after


def later(seconds: float) -> Now:
    return Now(START.monotonic + seconds, START.wall + seconds)


def transfer(status: str, transfer_id: str = "t1", picked_up: int = 0, **fields: Any) -> Transfer:
    recipients = tuple(Recipient(f"{n}@example.com", None, SENT_AT if n < picked_up else None) for n in range(3))
    return Transfer(
        transfer_id,
        status,
        "Report",
        **{"sent_at": SENT_AT, "expires_at": EXPIRES_AT, "recipients": recipients} | fields,
    )


@dataclass
class Others:
    """The rest of the cluster, which says what a test says."""

    state: ClusterState | None = None
    waiters: Mapping[str, SharedWaiter] = field(default_factory=dict)
    readings: Mapping[str, Transfer | None] = field(default_factory=dict)

    async def sync(self, own: ProcessState) -> ClusterState | None:
        self.waiters, self.readings = own.waiters, own.readings
        return self.state

    async def read_events(self) -> None:
        pass

    def leave(self) -> None:
        pass


def following(**readings: Transfer | None) -> ClusterState:
    return ClusterState(is_holder=False, has_holder=True, others={}, readings=readings)


def holding(**others: SharedWaiter) -> ClusterState:
    return ClusterState(is_holder=True, has_holder=True, others=others, readings={})


class Scene:
    def __init__(self) -> None:
        self.registry, self.others = WaiterRegistry(), Others()
        self.member = ClusterMember(self.others, self.registry)

    def wait(self, transfer_id: str = "t1", timeout: float = 86_400.0, interval: float = 60.0, **rules: Any) -> Waiter:
        waiter = Waiter(transfer_id, interval, START.wall + timeout, OutcomeRules(**rules), polled_at=START)
        self.registry._by_id[waiter.transfer_id].append(waiter)
        return waiter

    async def sync(self, state: ClusterState | None, seconds: float = 0.0) -> None:
        self.others.state = state
        await self.member.sync(later(seconds), ORIGIN, can_poll=True)

    def is_due(self, waiter: Waiter, seconds: float) -> bool:
        now = later(seconds)
        return waiter.due_at(PollTimes(ORIGIN), now) <= now.monotonic


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_what_the_holder_polls_is_polled_again_only_now_and_then(scene: Scene) -> None:
    waiter = scene.wait()
    await scene.sync(following(), 1)
    assert not scene.is_due(waiter, 3)
    await scene.sync(following(), TRUST_INTERVAL)
    assert scene.is_due(waiter, TRUST_INTERVAL + 3)


async def test_who_hears_nothing_from_the_others_polls_alone(scene: Scene) -> None:
    waiter = scene.wait()
    await scene.sync(following(), 1)
    await scene.sync(None, 6)
    assert not scene.is_due(waiter, 10)
    assert scene.is_due(waiter, 1 + LEASE_SECONDS)


async def test_nobody_holds_the_lease(scene: Scene) -> None:
    waiter = scene.wait()
    await scene.sync(ClusterState(is_holder=False, has_holder=False, others={}, readings={}), 1)
    assert scene.is_due(waiter, 3)


@pytest.mark.parametrize("status", ["complete", "expired", "canceled"])
async def test_a_terminal_status_finishes_the_waiter(scene: Scene, status: str) -> None:
    waiter = scene.wait()
    await scene.sync(following(t1=transfer(status)))
    assert waiter.result
    assert (waiter.result["status"], waiter.result["transfer"]["status"]) == ("finished", status)
    assert scene.registry.pop_has_updates()


@pytest.mark.parametrize("is_reached", [True, False])
async def test_one_that_joins_a_finished_waiter_gets_its_reading(scene: Scene, is_reached: bool) -> None:
    scene.wait()
    await scene.sync(following(t1=transfer("complete")), 1)
    late = scene.wait()
    await scene.sync(following() if is_reached else None, 6)
    assert late.result
    assert late.result["transfer"]["status"] == "complete"


async def test_a_reading_is_no_poll(scene: Scene) -> None:
    waiter = scene.wait(timeout=100.0)
    await scene.sync(following(t1=transfer("pending")), 90)
    assert waiter.polled_at == START
    scene.registry.check_deadlines(later(101))
    await scene.sync(following(t1=transfer("pending")), 102)
    assert waiter.result is None, "a final poll of its own comes first"


async def test_no_reading_goes_back(scene: Scene) -> None:
    waiter = scene.wait()
    waiter.update(transfer("partial", picked_up=2), later(10))
    await scene.sync(following(t1=transfer("partial", picked_up=1)), 12)
    assert waiter.transfer
    assert waiter.transfer.picked_up_count == 2


async def test_only_what_another_process_can_conclude_is_shared(scene: Scene) -> None:
    scene.wait("plain", interval=10.0)
    scene.wait("plain")
    scene.wait("partial", accept_partial=True)
    scene.wait("overdue", timeout=-1.0)
    scene.wait("nul \0")
    scene.wait("x" * 500)
    scene.wait("draft").update(transfer("draft", "draft", sent_at=None), later(1))
    scene.wait("expired").update(transfer("pending", "expired", expires_at=SENT_AT), later(1))
    scene.wait("known").update(transfer("pending", "known"), later(1))
    await scene.sync(following(), 2)
    assert scene.others.waiters == {
        "plain": SharedWaiter(10, 0),
        "known": SharedWaiter(60, int(START.wall) - 3_600),
    }


async def test_what_the_holder_cannot_read_is_read_by_each(scene: Scene) -> None:
    waiter = scene.wait()
    await scene.sync(following(t1=None), 1)
    assert scene.is_due(waiter, 3)
    await scene.sync(following(), 6)
    assert scene.others.waiters == {}
    assert scene.is_due(waiter, 8)


async def test_the_holder_publishes_what_has_changed(scene: Scene) -> None:
    await scene.sync(holding(t1=SharedWaiter(60, 0), t2=SharedWaiter(60, 7), t3=SharedWaiter(60, 7)))
    assert {one.transfer_id for one in scene.member.unfinished()} == {"t1", "t2", "t3"}
    found = ScanResult()
    found.add(transfer("pending", "t1"))
    found.add(transfer("complete", "t2"))
    found.add(transfer("complete", "mine"))
    found.failed["t3"] = MalformedResponse("no transfer")
    scene.member.record(found, later(3))
    await scene.sync(holding(t1=SharedWaiter(60, 0), t2=SharedWaiter(60, 7), t3=SharedWaiter(60, 7)), 5)
    assert {one: each and each.status for one, each in scene.others.readings.items()} == {
        "t1": "pending",
        "t2": "complete",
        "t3": None,
    }
    assert [one.transfer_id for one in scene.member.unfinished()] == ["t1"]
    again = ScanResult()
    again.add(transfer("pending", "t1"))
    scene.member.record(again, later(63))
    await scene.sync(holding(t1=SharedWaiter(60, 0)), 65)
    assert scene.others.readings == {}
    assert scene.member.others.keys() == {"t1"}


@pytest.mark.parametrize(
    ("transfer_id", "row"),
    [("None", SharedWaiter(60, 0)), (" ", SharedWaiter(60, 0)), ("t2", SharedWaiter("x", 0)), ("t2", (60, inf))],
)
async def test_a_damaged_row_is_left_to_its_process(scene: Scene, transfer_id: str, row: Any) -> None:
    rows = holding(**{transfer_id: SharedWaiter(*row), "t1": SharedWaiter(60, 0)})
    published = []
    for seconds in (0, 5, 10):
        await scene.sync(rows, seconds)
        assert {one.transfer_id for one in scene.member.unfinished()} == {"t1"}
        published.append(dict(scene.others.readings))
    assert published == [{}, {transfer_id: None}, {}]
    await scene.sync(holding(t1=SharedWaiter(60, 0)), 15)
    await scene.sync(rows, 20)
    await scene.sync(rows, 25)
    assert scene.others.readings == {transfer_id: None}, "the row is a new one"


async def test_a_reading_is_published_until_that_is_confirmed(scene: Scene) -> None:
    await scene.sync(holding(t1=SharedWaiter(60, 0)))
    found = ScanResult()
    found.add(transfer("complete"))
    scene.member.record(found, later(3))
    await scene.sync(None, 5)
    await scene.sync(holding(t1=SharedWaiter(60, 0)), 10)
    assert scene.others.readings.keys() == {"t1"}
    await scene.sync(holding(t1=SharedWaiter(60, 0)), 15)
    assert scene.others.readings == {}


async def test_who_has_lost_the_lease_publishes_nothing(scene: Scene) -> None:
    await scene.sync(holding(t1=SharedWaiter(60, 0)))
    found = ScanResult()
    found.add(transfer("complete"))
    scene.member.record(found, later(3))
    await scene.sync(following(), 1_000)
    assert scene.member.others == {}
    await scene.sync(following(), 1_005)
    assert scene.others.readings == {}


async def test_a_new_holder_polls_for_all_at_once(scene: Scene) -> None:
    await scene.sync(holding(t1=SharedWaiter(60, 0)), 500)
    assert scene.member.next_due_at(PollTimes(ORIGIN), later(500)) <= later(500).monotonic
    await scene.sync(holding(t1=SharedWaiter(60, 0), t2=SharedWaiter(60, 0)), 505)
    scene.member.others.pop("t1")
    assert later(505).monotonic < scene.member.next_due_at(PollTimes(ORIGIN), later(505)) < inf


async def test_an_expiry_is_left_to_the_process_that_waits(scene: Scene) -> None:
    await scene.sync(holding(t1=SharedWaiter(60, 0)))
    found = ScanResult()
    found.add(transfer("pending", expires_at="2027-01-15T08:10:00Z"))
    scene.member.record(found, later(3))
    at = later(601.5)
    assert scene.member.next_due_at(PollTimes(ORIGIN), at) <= at.monotonic
    (waiter,) = scene.member.pollable(PollTimes(ORIGIN), at)
    assert waiter.due_at(PollTimes(ORIGIN), at) > at.monotonic
