"""Which listings and single reads a poll makes, of a service whose pages are small; and pages that triggerers share."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from outbound_transfer.client.errors import ServerFault
from outbound_transfer.client.models import Recipient, Transfer, TransferPage, UnreadableRow
from outbound_transfer.store.config import SqliteFileHook
from outbound_transfer.store.engine import Database
from outbound_transfer.waiting import reader
from outbound_transfer.waiting.reader import FINISHED, MAX_SINGLE_READS, Reader, SharedPages
from outbound_transfer.waiting.wait import OUTSTANDING

PAGE = 4


@dataclass
class Service:
    """Transfers by id, newest first, with their statuses; those of ``hidden`` are only shown singly, if at all.

    :ivar nameless: whose rows have no id.
    """

    statuses: dict[str, str]
    hidden: set[str] = field(default_factory=set)
    nameless: set[str] = field(default_factory=set)
    failing: dict[str, Exception] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def transfer(self, transfer_id: str) -> Transfer:
        number = int(transfer_id)
        sent_at = f"2024-01-01T{number // 3_600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        return Transfer(transfer_id, self.statuses[transfer_id], "", "2100-01-01T00:00:00Z", sent_at=sent_at)

    def list_transfers(self, *, status: str, cursor: str | None) -> TransferPage:
        self._ask(status)
        shown = [one for one in self.statuses if self.statuses[one] == status and one not in self.hidden]
        rest = [one for one in sorted(shown, key=int, reverse=True) if cursor is None or int(one) < int(cursor)]
        page = rest[:PAGE]
        rows, nameless = [one for one in page if one not in self.nameless], self.nameless.intersection(page)
        unreadable = tuple(UnreadableRow("", "no id", self.transfer(one).sent_at) for one in nameless)
        return TransferPage(tuple(map(self.transfer, rows)), page[-1] if len(rest) > PAGE else None, unreadable)

    def get_transfer(self, transfer_id: str) -> Transfer:
        self._ask(transfer_id)
        return self.transfer(transfer_id)

    def _ask(self, what: str) -> None:
        self.calls.append(what)
        if what in self.failing:
            raise self.failing[what]

    def pages(self, *statuses: str) -> int:
        return sum(max(ceil(list(self.statuses.values()).count(one) / PAGE), 1) for one in statuses)


@dataclass
class Waits:
    """What waits would know from the news of polls, and in which poll each was last answered."""

    service: Service
    urgent: set[str] = field(default_factory=set)
    known: dict[str, Transfer] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    polls: int = 0

    def __post_init__(self) -> None:
        self.reader = Reader(SharedPages())

    def poll(self, *ids: str, is_new_hour: bool = False) -> list[str]:
        """Poll once; return what the service was asked for."""
        self.polls += 1
        if is_new_hour:
            self.reader = Reader(SharedPages())
        asked = len(self.service.calls)
        ordered = sorted(ids, key=lambda one: (self.answered.get(one, 0), int(one)))
        wanted = {one: self._presumable(one) for one in ordered}
        self.reader.read(self.service, wanted, 45.0, self._hear)  # type: ignore[arg-type]
        return self.service.calls[asked:]

    def _presumable(self, transfer_id: str) -> Transfer | None:
        known = self.known.get(transfer_id)
        return known if known and known.status in OUTSTANDING and transfer_id not in self.urgent else None

    def _hear(self, transfer_id: str, found: Transfer | Exception | None, _: float) -> None:
        if isinstance(found, Transfer):
            self.known[transfer_id] = found
        elif found is None:
            hidden = transfer_id in self.service.hidden  # unlike one whose row has no id
            assert self.service.statuses[transfer_id] in OUTSTANDING or hidden, "it is not outstanding"
            assert transfer_id not in self.urgent, "presumed, and was to be read"
        self.answered[transfer_id] = self.polls


statuses = st.sampled_from([*OUTSTANDING, *FINISHED])
ids = st.integers(1, 70).map(lambda count: [str(number) for number in range(1, count + 1)])


@given(st.data(), ids)
def test_each_answer_is_what_a_single_read_says_and_nobody_is_starved(data: Any, all_ids: list[str]) -> None:
    changes = st.dictionaries(st.sampled_from(all_ids), statuses)
    service = Service(dict.fromkeys(all_ids, "pending") | data.draw(changes))
    service.hidden, service.nameless = (set(data.draw(st.lists(st.sampled_from(all_ids)))) for _ in range(2))
    waits = Waits(service, urgent=set(data.draw(st.lists(st.sampled_from(all_ids)))))
    service.failing = {data.draw(st.sampled_from(all_ids)): ValueError("an id that is too long for a URL")}
    for _ in range(data.draw(st.integers(1, 5))):
        service.statuses |= data.draw(changes)
        calls = waits.poll(*all_ids)
        # Even where no listing shows anything: the pages of all, some of them once more, and the single reads.
        assert len(calls) <= 2 * service.pages(*OUTSTANDING, *FINISHED) + MAX_SINGLE_READS
        assert sum(one.isdecimal() for one in calls) <= MAX_SINGLE_READS
    service.failing.clear()
    waited = 2 + ceil(len(all_ids) / MAX_SINGLE_READS)
    for _ in range(waited):
        waits.poll(*all_ids, is_new_hour=True)
    finished = {one: status for one, status in service.statuses.items() if status in FINISHED}
    assert {one: waits.known[one].status for one in finished} == finished
    assert all(waits.polls - at <= waited for at in waits.answered.values())
    assert waits.answered.keys() == service.statuses.keys()


def test_of_many_that_are_outstanding_only_the_finished_are_listed_for_an_hour() -> None:
    service = Service({str(number): "pending" for number in range(1, 61)})
    waits = Waits(service)
    assert waits.poll(*service.statuses) == ["pending"] * 15
    for _ in range(5):
        assert waits.poll(*service.statuses) == [*FINISHED]
    service.statuses["7"] = "canceled"
    waits.poll(*service.statuses)
    assert waits.known["7"].status == "canceled"
    assert waits.poll(*service.statuses, is_new_hour=True)[:2] == ["pending"] * 2


def test_a_listing_that_no_longer_shows_finished_transfers_is_not_believed() -> None:
    service = Service({str(number): "pending" for number in range(1, 61)})
    waits = Waits(service)
    for finished in ("60", "59"):
        waits.poll(*service.statuses)
        service.statuses[finished] = "complete"
        waits.poll(*service.statuses)
        service.hidden.add(finished)
    for finished in ("58", "57"):
        service.statuses[finished] = "complete"
        service.hidden.add(finished)
        waits.poll(*list(service.statuses)[: int(finished)])
        assert waits.known[finished].status == "complete"


def test_new_or_urgent_transfers_are_read_and_those_before_the_oldest_wait_are_not_listed() -> None:
    service = Service({str(number): "complete" for number in range(1, 401)})
    service.statuses |= {str(number): "pending" for number in range(401, 461)}
    waits, waited = Waits(service), list(service.statuses)[400:]
    waits.poll(*waited)
    assert waits.poll(*waited) == [*FINISHED]
    service.statuses["461"] = "pending"
    waits.urgent = {"403"}
    assert sorted(waits.poll(*waited, "461")) == sorted([*FINISHED, "403", "461"])


def test_a_service_that_is_down_is_not_asked_about_each_transfer() -> None:
    service = Service({str(number): "pending" for number in range(1, 41)})
    service.failing = {what: ServerFault(503) for what in (*service.statuses, *OUTSTANDING, *FINISHED)}
    with pytest.raises(ServerFault):
        Waits(service).poll(*service.statuses)
    assert len(service.calls) == reader.MAX_FAILURES


ROW = Transfer("t", "pending", "", sent_at="2024-01-01T00:00:00Z")
SHOWN = TransferPage((ROW,), "next")
READ = TransferPage((replace(ROW, subject="secret", recipients=(Recipient("ann@example.com"),)),), "next")


def shared(hook: SqliteFileHook) -> SharedPages:
    return SharedPages(Database(hook, "deliveries"), "outbound_transfer_", None, "key")


def test_a_page_replaces_the_one_before_and_those_of_yesterday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_SECONDS", 60.0)  # a busy machine is no silent database
    one = shared(SqliteFileHook(tmp_path / "pages.db"))
    one.keep("partial ", READ)
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"pending" in stored
    assert (b"ann@" in stored, b"secret" in stored) == (False, False)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 100_000)
    for _ in range(2):
        one.keep("pending ", SHOWN)
    assert one._database is not None
    with one._database.begin() as tx:
        assert tx.execute(sa.text("SELECT COUNT(*) FROM outbound_transfer_pages")).scalar() == 1
    assert one.find("pending ", 60.0) == SHOWN
    one.keep("partial ", TransferPage((ROW,), None, (UnreadableRow("u", "reason"),)))
    assert one.find("partial ", 60.0) is None, "everybody reads a page with a row that is unreadable"


def test_another_triggerers_page_is_read_again_if_it_shows_what_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say who has picked up: else each transfer would be read by itself."""
    monkeypatch.setattr(reader, "MAX_SECONDS", 60.0)
    service = Service({str(number): "pending" for number in range(1, 61)})
    triggerers = [Waits(service), Waits(service)]
    for number, waits in enumerate(triggerers):
        waits.reader = Reader(shared(SqliteFileHook(tmp_path / "pages.db")))
        waits.poll(*list(service.statuses)[number::2])
    service.statuses = dict.fromkeys(service.statuses, "complete")
    for number, waits in enumerate(triggerers):
        assert not any(call.isdecimal() for call in waits.poll(*list(service.statuses)[number::2]))
        assert {each.status for each in waits.known.values()} == {"complete"}


def test_a_database_that_is_down_or_silent_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reader, "MAX_SECONDS", 0.1)
    asked, silent = [], threading.Event()

    def connect() -> None:
        asked.append(1)
        silent.wait(30)
        raise OSError("secret row\nDETAIL: ann@example.com")

    for is_silent in (True, False):
        if not is_silent:
            silent.set()
        hook = SqliteFileHook(tmp_path / "silent.db")
        monkeypatch.setattr(hook, "get_conn", connect)
        one = shared(hook)
        for _ in range(3):
            assert one.find("pending ", 60.0) is None
            one.keep("pending ", READ)
    assert len(asked) == 2
    assert len(caplog.records) == 2
    assert "ann@example.com" not in caplog.text
