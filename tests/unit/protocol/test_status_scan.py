"""What a poll asks, against an account in memory: always enough, never more than it must."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.drivers import drive
from outbound_transfer.polling.read_backoff import ReadBackoff
from outbound_transfer.protocol import listings, status_scan
from outbound_transfer.protocol.errors import CallError, MalformedResponse, NotFound, ServerFault
from outbound_transfer.protocol.listings import ScanResult
from outbound_transfer.protocol.messages import Call, Operation
from outbound_transfer.protocol.models import Transfer, TransferPage, UnreadableRow, to_epoch
from outbound_transfer.protocol.status_scan import ListingCost, ScanProgress, Wanted

PAGE = 100
STATUSES = ("pending", "partial", "complete", "expired", "canceled", "unknown", "draft", "held")
LISTED = ("pending", "partial", "complete", "expired", "canceled")


def _sent(second: int) -> str:
    return f"2026-03-{1 + second // 86_400:02d}T{second // 3_600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"


@dataclass
class Account:
    """A key's transfers by id, in the order in which they were sent."""

    statuses: dict[str, str]
    asked: list[tuple[Operation, str]] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    poisoned: set[str] = field(default_factory=set)
    claimed: dict[str, str | None] = field(default_factory=dict)
    page_size: int = PAGE
    _positions: dict[str, int] = field(default_factory=dict)

    def respond(self, call: Call[Any]) -> Any:
        if call.operation is Operation.LIST:
            return self._page(**call.params)  # type: ignore[arg-type]
        transfer_id = call.path.rpartition("/")[2]
        self.asked.append((Operation.GET, transfer_id))
        if transfer_id in self.unreadable:
            raise MalformedResponse("no JSON")
        if transfer_id not in self.statuses:
            raise NotFound(404, "not_found")
        return self._transfer(transfer_id)

    def _page(self, limit: int, status: str, cursor: str | None = None) -> TransferPage:
        self.asked.append((Operation.LIST, status))
        rows = [
            one
            for one, its in reversed(self.statuses.items())
            if its in LISTED and status in ("all", its) and one not in self.skipped
        ]
        limit = min(limit, self.page_size)
        start = int(cursor or 0)
        more = str(start + limit) if start + limit < len(rows) else None
        page = rows[start : start + limit]
        return TransferPage(
            tuple(self._transfer(one) for one in page if one not in self.poisoned),
            more,
            tuple(UnreadableRow(number, one, "poison") for number, one in enumerate(page) if one in self.poisoned),
        )

    def _transfer(self, transfer_id: str) -> Transfer:
        if len(self._positions) != len(self.statuses):
            self._positions = {one: position for position, one in enumerate(self.statuses)}
        sent = self.claimed[transfer_id] if transfer_id in self.claimed else _sent(self._positions[transfer_id])
        return Transfer(transfer_id, self.statuses[transfer_id], "subject", sent_at=sent)

    def scan_statuses(
        self, wanted: dict[str, float], listing: ListingCost | None = None
    ) -> tuple[ScanResult, ListingCost]:
        found, progress = ScanResult(), ScanProgress(listing or ListingCost())
        drive(status_scan.scan_statuses(urgently(wanted), progress, found), self.respond)
        return found, progress.outstanding

    def pages(self, *statuses: str) -> int:
        return sum(max(-(-count // PAGE), 1) for count in (self._count(status) for status in statuses))

    def _count(self, status: str) -> int:
        return sum(its == status for its in self.statuses.values())


def account(**counts: int) -> Account:
    names = [f"{status}-{number}" for status, count in counts.items() for number in range(count)]
    return Account({name: name.partition("-")[0] for name in names})


def wanting(ids: Any) -> dict[str, float]:
    return dict.fromkeys(ids, 0.0)


def urgently(wanted: dict[str, float]) -> Wanted:
    return Wanted(wanted, wanted.keys(), wanted.keys())


@pytest.mark.parametrize("others", [0, 500])
def test_a_thousand_waiters_cost_the_pages_of_outstanding_transfers(others: int) -> None:
    full = account(pending=900 + others, partial=100)
    found, listing = full.scan_statuses(wanting(full.statuses))
    assert len(full.asked) == listing.pages == 10 + others // 100
    assert found.transfers.keys() == full.statuses.keys()


def test_few_waiters_are_read_one_by_one_if_the_listing_is_longer() -> None:
    crowd = account(pending=2_000)
    few = wanting(["pending-0", "pending-1", "pending-2"])
    _, listing = crowd.scan_statuses(few)
    assert len(crowd.asked) <= 2 * len(few), "what is to be learned costs no more than the reads it may save"
    for _ in range(3):
        crowd.asked.clear()
        _, listing = crowd.scan_statuses(few, listing)
        assert [operation for operation, _ in crowd.asked] == [Operation.GET] * 3


def test_what_the_listing_costs_is_learned_again_after_as_many_looks() -> None:
    crowd = account(pending=250)
    one_of_few = wanting(["pending-0", "pending-1"])
    _, listing = crowd.scan_statuses(one_of_few)
    costs = []
    for _ in range(12):
        crowd.asked.clear()
        _, listing = crowd.scan_statuses(one_of_few, listing)
        costs.append(len(crowd.asked))
    assert set(costs) == {2, 4}
    assert sum(costs) <= 12 * 2 * 2


def test_the_listing_is_left_behind_the_oldest_that_is_wanted() -> None:
    old = account(pending=3_000)
    new = {f"pending-{number}": to_epoch(_sent(number)) for number in range(2_950, 3_000)}
    _, listing = old.scan_statuses(new)
    assert old.asked == [(Operation.LIST, "pending")]
    assert listing.pages == 1


@pytest.mark.parametrize("end", ["complete", "expired", "canceled"])
def test_many_ends_are_found_by_the_page(end: str) -> None:
    many = account(pending=200, **{end: 500})
    found, _ = many.scan_statuses(wanting(many.statuses))
    assert found.transfers.keys() == many.statuses.keys()
    assert len(many.asked) <= 2 + 1 + 5 + 2, "pages of the outstanding, of the ended, and one in vain of each other end"


def test_a_row_that_was_skipped_is_read_by_itself_and_still_waits() -> None:
    shifting = account(pending=300)
    shifting.skipped = {"pending-7"}
    found, _ = shifting.scan_statuses(wanting(shifting.statuses))
    assert found.transfers["pending-7"].status == "pending"


def test_a_late_page_does_not_take_back_an_end() -> None:
    found = ScanResult()
    found.add(Transfer("t", "complete", "subject"))
    found.add(Transfer("t", "pending", "subject"))
    assert found.transfers["t"].status == "complete"


def test_what_the_key_does_not_see_is_gone_and_nothing_else_suffers() -> None:
    some = account(pending=1, unknown=1)
    found, _ = some.scan_statuses(wanting(["pending-0", "unknown-0", "none", "..", "\ud800"]), ListingCost(pages=50))
    assert set(found.missing) == {"none", "..", "\ud800"}
    assert set(found.transfers) == {"pending-0", "unknown-0"}


@given(st.sets(st.integers(0, 29)), st.integers(0, 3))
def test_any_number_that_cannot_be_read_keeps_nobody_waiting_for_long(poisoned: set[int], listed: int) -> None:
    some = account(unknown=30 - listed, pending=listed)
    some.unreadable = {list(some.statuses)[number] for number in poisoned}
    seen: set[str] = set()
    troubled = ReadBackoff()
    for now in range(1 + 30 // status_scan.MAX_CONSECUTIVE_ERRORS):
        found = ScanResult()
        with contextlib.suppress(MalformedResponse):
            drive(
                status_scan.scan_statuses(
                    urgently(wanting(some.statuses)), ScanProgress(ListingCost(pages=50)), found, troubled.failures
                ),
                some.respond,
            )
        troubled.record_failure(found.failed, float(now))
        troubled.deprioritize(found.failed_alone, float(now))
        troubled.forget(found.transfers)
        seen |= set(found.transfers)
    if some.unreadable != set(some.statuses):
        assert seen == set(some.statuses) - some.unreadable


@pytest.mark.parametrize("error", [MalformedResponse("too long"), ServerFault(500)])
def test_a_page_that_cannot_be_had_keeps_nobody_waiting(error: CallError) -> None:
    some = account(pending=3)

    def respond(call: Call[Any]) -> Any:
        if call.operation is Operation.LIST:
            raise error
        return some.respond(call)

    found = ScanResult()
    drive(status_scan.scan_statuses(urgently(wanting(some.statuses)), ScanProgress(), found), respond)
    assert set(found.transfers) == set(some.statuses)


def test_all_that_is_sent_while_a_watch_begins_is_listed() -> None:
    history = account(complete=3, pending=1)
    late = {f"late-{number}": "pending" for number in range(3 * PAGE)}

    def respond(call: Call[Any]) -> Any:
        if call.params.get("status") == "partial":
            history.statuses |= late
        return history.respond(call)

    newest, _ = drive(listings.list_outstanding(ScanResult()), respond)
    assert late.keys() <= {row.id for row in newest}


def test_unreadable_rows_are_fetched_and_reported() -> None:
    some = account(pending=300)
    some.poisoned = {"pending-7", "pending-8"}
    found, _ = some.scan_statuses(wanting(some.statuses))
    assert set(found.transfers) == set(some.statuses)
    assert {row.id for row in found.unreadable} == some.poisoned
    rows = drive(listings.list_sent_since(0.0, frozenset(), ScanResult()), some.respond)
    assert [row.id for row in rows] == list(some.statuses)[::-1], "each in its place"
    assert {row.id for row in rows if row.transfer is None} == some.poisoned


def test_what_is_sent_while_a_watch_begins_and_cannot_be_read_may_be_outstanding() -> None:
    history = account(complete=3, pending=1)
    history.poisoned = {"complete-0", "late"}

    def respond(call: Call[Any]) -> Any:
        if call.params.get("status") == "partial":
            history.statuses["late"] = "pending"
        return history.respond(call)

    newest, outstanding = drive(listings.list_outstanding(ScanResult()), respond)
    assert {row.id for row in outstanding} == {"pending-0", "late"}
    assert {row.id for row in newest} == set(history.statuses)


@pytest.mark.parametrize("claimed", ["2999-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "soon", None])
def test_some_absurd_times_do_not_end_a_listing(claimed: str | None) -> None:
    history = account(complete=450)
    history.claimed = {f"complete-{number}": claimed for number in range(0, 450, 3)}
    rows = drive(listings.list_sent_since(to_epoch(_sent(50)) or 0, frozenset(), ScanResult()), history.respond)
    assert {f"complete-{number}" for number in range(50, 450)} <= {row.id for row in rows}


@pytest.mark.parametrize("cursors", [["1"], ["1", "2"], None])
def test_an_endless_listing_is_malformed(cursors: list[str] | None) -> None:
    asked = []

    def endless(call: Call[Any]) -> Any:
        asked.append(call)
        return TransferPage((), next_cursor=cursors[len(asked) % len(cursors)] if cursors else str(len(asked)))

    with pytest.raises(MalformedResponse, match="does not end"):
        drive(listings.list_sent_since(0.0, frozenset(), ScanResult()), endless)
    assert len(asked) <= 3


def test_a_service_that_is_down_does_not_get_every_request() -> None:
    some = account(pending=50)
    asked = []

    def down(call: Call[Any]) -> Any:
        asked.append(call)
        raise ServerFault(503)

    with pytest.raises(ServerFault):
        drive(
            status_scan.scan_statuses(
                urgently(wanting(some.statuses)), ScanProgress(ListingCost(pages=99)), ScanResult()
            ),
            down,
        )
    assert len(asked) == status_scan.MAX_CONSECUTIVE_ERRORS


def test_a_listing_that_goes_on_for_ever_is_given_up() -> None:
    asked = []

    def endless(call: Call[Any]) -> Any:
        asked.append(call.operation)
        if call.operation is Operation.GET:
            return Transfer("t", "pending", "subject")
        return TransferPage((), next_cursor=str(len(asked)))

    found = ScanResult()
    drive(status_scan.scan_statuses(urgently(wanting("abc")), ScanProgress(), found), endless)
    assert Counter(asked) == {Operation.LIST: 3, Operation.GET: 3}
    assert set(found.transfers) == set("abc"), "an answer is taken for what was asked, whatever id it claims"


def test_what_was_sent_since_an_instant_is_found_however_it_fares() -> None:
    history = account(complete=450, pending=60, canceled=1)
    found = ScanResult()
    rows = drive(listings.list_sent_since(to_epoch(_sent(440)) or 0, frozenset(), found), history.respond)
    assert [row.id for row in rows][:71] == list(history.statuses)[:439:-1]
    assert history.asked == [(Operation.LIST, "all")] * 2, "most of the second page is older"


def test_a_watch_begins_with_all_that_is_outstanding() -> None:
    history = account(pending=150, partial=3, complete=400)
    found = ScanResult()
    newest, outstanding = drive(listings.list_outstanding(found), history.respond)
    assert [row.id for row in newest] == list(history.statuses)[: -PAGE - 1 : -1]
    assert {row.id for row in outstanding} == {
        one for one, status in history.statuses.items() if status in ("pending", "partial")
    }


@given(
    st.lists(st.sampled_from(STATUSES), min_size=1, max_size=400),
    st.sets(st.integers(0, 399), min_size=1),
    st.integers(1, 60),
)
def test_every_wanted_transfer_is_found_at_a_bounded_cost(statuses: list[str], chosen: set[int], pages: int) -> None:
    some = Account({f"t{number}": status for number, status in enumerate(statuses)})
    wanted = wanting(f"t{number}" for number in chosen if number < len(statuses))
    found, listing = some.scan_statuses(wanted, ListingCost(pages))
    assert found.transfers.keys() == wanted.keys()
    assert all(some.statuses[one] == seen.status for one, seen in found.transfers.items())
    unlisted = sum(some.statuses[one] not in ("pending", "partial") for one in wanted)
    outstanding = some.pages("pending", "partial")
    assert len(some.asked) <= max(len(wanted), outstanding) + unlisted + 3
    some.asked.clear()
    some.scan_statuses(wanted, listing)
    assert len(some.asked) <= min(len(wanted), outstanding) + unlisted + 3


@dataclass
class Polls:
    """What somebody who waits has seen over several scans, each a minute after the one before."""

    account: Account
    waited_for: list[str]
    progress: ScanProgress = field(default_factory=ScanProgress)
    seen: dict[str, Transfer] = field(default_factory=dict)
    now: float = 0.0

    def again(self, due: Set[str] | None = None, urgent: Set[str] = frozenset()) -> ScanResult:
        """Scan once more; what has finished is no longer waited for."""
        self.account.asked.clear()
        waited_for = {
            one: to_epoch(self.seen[one].sent_at) or 0.0 if one in self.seen else 0.0
            for one in self.waited_for
            if not self.has_finished(one)
        }
        due = waited_for.keys() if due is None else due & waited_for.keys()
        found = ScanResult()
        wanted = Wanted(waited_for, due, urgent & due, due - self.seen.keys())
        drive(status_scan.scan_statuses(wanted, self.progress, found, now=self.now), self.account.respond)
        self.seen |= found.transfers
        self.now += 60.0
        assert not [one for one in found.presumed if one not in self.seen]
        assert all(self.account.statuses[one] == its.status for one, its in found.transfers.items())
        assert urgent & due <= found.transfers.keys()
        return found

    def until_all_are_read(self, most: int) -> int:
        """Scan until nothing is unread, at most so many times; the number of requests."""
        asked = 0
        for _ in range(most):
            unread = set(self.waited_for) - self.seen.keys()
            if not unread:
                return asked
            self.again(unread)
            asked += len(self.account.asked)
        raise AssertionError(f"{len(unread)} are not read after {most} scans")

    def has_finished(self, transfer_id: str) -> bool:
        return transfer_id in self.seen and self.seen[transfer_id].status in ("complete", "expired", "canceled")


def test_many_outstanding_are_read_in_parts() -> None:
    crowd = account(pending=4_900, partial=100)
    polls = Polls(crowd, list(crowd.statuses))
    assert polls.until_all_are_read(60) <= 50 + 13 + 5
    assert polls.progress.slow.length == 50


def test_few_finished_among_many_outstanding_cost_the_pages_of_the_finished() -> None:
    crowd = account(pending=5_000)
    polls = Polls(crowd, list(crowd.statuses))
    polls.until_all_are_read(60)
    for number in range(150):
        crowd.statuses[f"pending-{number}"] = "complete"
    found = polls.again()
    assert found.transfers.keys() == {f"pending-{number}" for number in range(150)}
    assert found.presumed == crowd.statuses.keys() - found.transfers.keys()
    assert len(crowd.asked) == 4, "two pages that are complete, one of each other end"
    for _ in range(3):
        polls.again()
        assert len(crowd.asked) == 3


def test_many_finished_cost_no_more_than_what_is_outstanding() -> None:
    busy = account(complete=3_000, pending=1_500)
    busy.claimed = dict.fromkeys(busy.statuses, _sent(0))
    polls = Polls(busy, [one for one in busy.statuses if one.startswith("pending")])
    polls.until_all_are_read(60)
    asked = []
    for _ in range(60):
        polls.again()
        asked.append(len(busy.asked))
    assert max(asked) <= 16 + status_scan.MAX_WHOLE_LISTING
    assert sum(asked) / len(asked) <= 16
    assert sum(asked) <= 60 * 16


def test_one_that_joins_is_read_at_once_while_others_are_listed() -> None:
    crowd = account(pending=5_000)
    polls = Polls(crowd, list(crowd.statuses))
    for _ in range(6):
        polls.again()
    assert polls.progress.slow.statuses, "the listing is not read to its end yet"
    crowd.statuses["late"] = "pending"
    polls.waited_for.append("late")
    polls.again()
    assert "late" in polls.seen


def test_one_that_is_never_listed_is_read_while_others_are_listed() -> None:
    crowd = account(pending=5_000, draft=1, unknown=1)
    polls = Polls(crowd, [one for one in crowd.statuses if one.startswith("pending")])
    polls.until_all_are_read(60)
    polls.waited_for += ["draft-0", "unknown-0"]
    for _ in range(3):
        polls.again()
    assert {"draft-0", "unknown-0"} <= polls.seen.keys()


def test_a_status_that_no_listing_shows_is_found_within_the_hour() -> None:
    crowd = account(pending=2_000)
    polls = Polls(crowd, list(crowd.statuses))
    polls.until_all_are_read(60)
    crowd.statuses["pending-7"] = "unknown"
    for _ in range(90):
        polls.again()
    assert polls.seen["pending-7"].status == "unknown"


def test_a_page_that_cannot_be_had_leaves_nobody_unread_for_ever() -> None:
    crowd = account(pending=2_000)

    def respond(call: Call[Any]) -> Any:
        if call.operation is Operation.LIST and call.params.get("cursor") == "300":
            raise ServerFault(500)
        return Account.respond(crowd, call)

    crowd.respond = respond  # type: ignore[method-assign]
    polls = Polls(crowd, list(crowd.statuses))
    polls.until_all_are_read(4_000)


def test_a_long_listing_that_never_ends_is_given_up() -> None:
    crowd = account(pending=1_400)

    def respond(call: Call[Any]) -> Any:
        if call.operation is Operation.LIST:
            crowd.asked.append((call.operation, ""))
            return TransferPage((), next_cursor=str(int(str(call.params.get("cursor") or 0)) + 1))
        return Account.respond(crowd, call)

    crowd.respond = respond  # type: ignore[method-assign]
    polls = Polls(crowd, list(crowd.statuses))
    polls.until_all_are_read(4_000)


@given(
    st.lists(st.sampled_from(LISTED), min_size=1, max_size=5),
    st.integers(70, 200),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 199), st.sampled_from(STATUSES)), max_size=30),
    st.sets(st.integers(0, 199), max_size=3),
)
def test_each_change_is_found_within_so_many_scans(
    statuses: list[str], count: int, step: int, changes: list[tuple[int, str]], poisoned: set[int]
) -> None:
    some = Account({f"t{number}": statuses[number % len(statuses)] for number in range(count)}, page_size=5)
    polls = Polls(some, list(some.statuses)[::step])
    for number, status in changes:
        if some.statuses.get(one := f"t{number}") in ("pending", "partial"):
            some.statuses[one] = status
        polls.again()
        assert len(some.asked) <= max(count, 2 * count // 5 + 20)
    some.poisoned = {f"t{number}" for number in poisoned}
    for _ in range(count + 70):
        polls.again()
    assert {one: polls.seen[one].status for one in polls.waited_for} == {
        one: some.statuses[one] for one in polls.waited_for
    }
