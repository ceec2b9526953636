"""The lease of a shared poll: one holder at a time, and another one soon after the holder is gone."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol.poll_lease import LEASE_SECONDS, RENEWAL_INTERVAL, PollLease

NOW = 1_800_000_000.0


def renew(lease: PollLease, process: str, now: float, *, can_poll: bool = True) -> bool:
    lease.forget_dead(now)
    return lease.renew(process, now, can_poll=can_poll)


def test_the_first_gets_the_lease_and_keeps_it() -> None:
    lease = PollLease()
    assert renew(lease, "a", NOW)
    assert not renew(lease, "b", NOW + 1)
    assert renew(lease, "a", NOW + 5)
    assert (lease.holder, lease.held_since, lease.expires_at) == ("a", NOW, NOW + 5 + LEASE_SECONDS)


def test_a_dead_holder_is_followed_by_another_within_thirty_seconds() -> None:
    lease = PollLease()
    renew(lease, "a", NOW)
    renew(lease, "b", NOW + 4)
    at = NOW + 4
    while not renew(lease, "b", at := at + RENEWAL_INTERVAL):
        pass
    assert at - NOW <= 30
    assert not renew(lease, "a", at + 1), "one that wakes up has lost it"


def test_one_that_does_not_reach_the_service_gives_up_the_lease() -> None:
    lease = PollLease()
    renew(lease, "a", NOW)
    assert not renew(lease, "a", NOW + 5, can_poll=False)
    assert not renew(lease, "b", NOW + 6, can_poll=False)
    assert (lease.holder, lease.expires_at) == ("", 0.0)
    assert renew(lease, "b", NOW + 7)


def test_one_that_stops_frees_the_lease_at_once() -> None:
    lease = PollLease()
    renew(lease, "a", NOW)
    lease.leave("a")
    assert renew(lease, "b", NOW + 1)
    lease.leave("nobody")
    assert lease.holder == "b"


def test_a_clock_that_is_set_back_keeps_nobody_alive() -> None:
    lease = PollLease()
    renew(lease, "a", NOW)
    assert renew(lease, "b", NOW - 3_600)


def test_numbers_grow_though_the_row_is_lost_or_the_clock_is_set_back() -> None:
    lease = PollLease()
    first = lease.next_number(NOW)
    assert lease.next_number(NOW - 3_600) == first + 1
    assert PollLease().next_number(NOW + 1) > first + 1


events = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30), st.booleans()), max_size=60)


@given(events=events)
def test_there_is_one_holder_and_it_is_alive(events: list[tuple[str, float, bool]]) -> None:
    lease, now, seen = PollLease(), NOW, dict[str, float]()
    for process, gap, can_poll in events:
        now += gap
        before = lease.holder
        is_holder = renew(lease, process, now, can_poll=can_poll)
        seen[process] = now
        assert is_holder == (lease.holder == process)
        if before != lease.holder and before:
            assert before == process or now - seen[before] >= LEASE_SECONDS
        assert not lease.holder or now - seen[lease.holder] < LEASE_SECONDS
        assert msgspec.json.decode(msgspec.json.encode(lease), type=PollLease) == lease
