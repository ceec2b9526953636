"""Transfers as tables where the service's answers are poisoned: by a raw server, on each warehouse."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.protocol.decoding import decode_page
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.timestamps import format_timestamp
from outbound_transfer.warehouse.transfers import TransferTables, is_storable, latest_sent_at
from support.feed_pages import event
from support.feed_pages import page as page_of_feed
from support.raw_server import answer, serving

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def row(number: int, **wrong: Any) -> dict[str, Any]:
    sent = f"2026-03-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    recipients = [{"email": "ann@example.com", "name": "ann", "picked_up_at": None}]
    base = {"id": f"t{number}", "status": "pending", "subject": "S", "recipients": recipients}
    return {**base, "sent_at": sent, "expires_at": "2026-04-01T00:00:00Z", **wrong}


POISON = [
    {"subject": "half \ud800"},
    {"subject": "nul \0", "status": "nul \0"},
    {"recipients": [{"email": "\udc00@example.com", "name": "nul \0", "picked_up_at": "soon"}]},
    {"sent_at": "2999-01-01T00:00:00Z"},
    {"sent_at": "0001-01-01T00:00:00Z"},
    {"sent_at": "soon", "expires_at": ""},
    {"sent_at": None, "expires_at": None},
    {"subject": "x" * 100_000, "status": "a new one"},
]


@pytest.mark.parametrize("poison", POISON, ids=[next(iter(one)) + str(number) for number, one in enumerate(POISON)])
def test_what_can_be_read_can_be_stored(warehouse_hook: Any, poison: dict[str, Any]) -> None:
    tables = TransferTables(Warehouse(warehouse_hook), "acme", "key", clock=lambda: NOW)
    tables.sync_state()
    page = decode_page(json.dumps({"data": [row(2), row(1, **poison), row(0)], "next_cursor": None}).encode())
    assert tables.save([one for one in page.data if is_storable(one)], NOW) == 3
    assert tables.save(page.data, NOW) == 0
    assert len(tables.sync_state().outstanding) == 3


@pytest.mark.parametrize("wrong", ["nul \0", "x" * 501])
def test_an_id_that_no_table_holds_is_known(wrong: str) -> None:
    (transfer,) = decode_page(json.dumps({"data": [row(1, id=wrong)], "next_cursor": None}).encode()).data
    assert not is_storable(transfer)


@pytest.mark.parametrize(
    "claimed", ["2999-01-01T00:00:00Z", "2026-03-02T12:00:00Z", "1970-01-01T00:00:00Z", "soon", None]
)
@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_one_absurd_time_does_not_say_how_far_the_listing_was_read(count: int, claimed: str | None) -> None:
    rows = [row(0, id="absurd", sent_at=claimed), *(row(number) for number in range(count, 0, -1))]
    newest = latest_sent_at(decode_page(json.dumps({"data": rows, "next_cursor": None}).encode()).data, NOW)
    assert newest <= "2026-03-01T00:01:40.000000Z"


class Listing:
    """A service with so many transfers, some of whose rows are poisoned."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.poisoned: dict[str, Any] = {}
        self.alone: dict[str, bytes] = {}
        self.asked: list[str] = []

    def handle(self, stream: socket.socket, request: bytes) -> None:
        target = request.split(b" ")[1].decode()
        self.asked.append(target)
        url = urlsplit(target)
        transfer_id = url.path.removeprefix("/v1/transfers").removeprefix("/")
        if transfer_id:
            stream.sendall(self._one(transfer_id))
            return
        start = int(parse_qs(url.query).get("cursor", ["0"])[0])
        rows = self.rows[::-1][start : start + 100]
        more = str(start + 100) if start + 100 < len(self.rows) else None
        data = [self.poisoned.get(one["id"], one) for one in rows]
        stream.sendall(answer(json.dumps({"data": data, "next_cursor": more}).encode()))

    def _one(self, transfer_id: str) -> bytes:
        if transfer_id in self.alone:
            return answer(self.alone[transfer_id])
        found = [one for one in self.rows if one["id"] == transfer_id]
        if not found:
            return answer(b'{"error": "not_found", "message": ""}', "404 Not Found")
        return answer(json.dumps(found[0]).encode())


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listing]:
    listing = Listing()
    with serving(listing.handle) as server:
        value = {"conn_type": "outbound_transfer", "host": server.url(), "password": "key"}
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(value))
        yield listing


@pytest.fixture
def run(tmp_path, monkeypatch) -> Callable[[], dict[str, Any]]:
    value = json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")})
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", value)

    def run() -> dict[str, Any]:
        result: dict[str, Any] = TransfersToSqlOperator(task_id="list", sql_conn_id="warehouse").execute({})
        return result

    return run


def test_rows_that_cannot_be_read_stop_no_others_and_are_read_by_themselves(listing: Listing, run: Any) -> None:
    listing.rows = [row(number) for number in range(20)]
    listing.poisoned = {
        "t3": row(3, subject=None),
        "t4": row(4, id=None),
        "t5": None,
        "t6": row(6, subject=7),
        "t7": row(7, recipients=7),
    }
    listing.alone = {f"t{number}": b"<html>" for number in (6, 7)}
    assert run() == {"pages": 1, "transfers": 15, "new_transfers": 15, "outstanding": 16}, "t3 was read by itself"
    assert sum(target.endswith("/t6") for target in listing.asked) == 1, "each is tried once a run"
    listing.poisoned, listing.alone = {}, {}
    assert run() == {"pages": 1, "transfers": 20, "new_transfers": 4, "outstanding": 20}


def test_one_that_has_left_the_listing_and_cannot_be_read_is_not_gone(listing: Listing, run: Any) -> None:
    listing.rows = [row(number) for number in range(5)]
    run()
    del listing.rows[1:4]
    listing.alone = {"t1": b'{"id": 1}', "t2": b"<html>"}
    assert run()["outstanding"] == 4, "t3, which came after them, is known to be gone"


def test_a_key_of_another_user_says_nothing_about_the_transfers_of_this_one(listing: Listing, run: Any) -> None:
    alice = listing.rows = [row(number) for number in range(130)]
    run()
    alice += [row(number) for number in range(130, 280)]
    for bob in ([], [row(number, id=f"bob{number}") for number in range(300, 303)]):
        listing.rows = bob
        with pytest.raises(AirflowFailException, match="another user's"):
            run()
    listing.rows = alice
    assert run() == {"pages": 3, "transfers": 280, "new_transfers": 150, "outstanding": 280}


def test_a_wrong_key_is_noticed_where_no_transfer_may_change(listing: Listing, run: Any) -> None:
    alice = listing.rows = [row(number, status="complete") for number in range(3)]
    run()
    alice += [row(number) for number in range(3, 150)]
    listing.rows = [row(200, id="bob")]
    with pytest.raises(AirflowFailException, match="another user's"):
        run()
    listing.rows = alice
    assert run()["new_transfers"] == 147


def test_a_key_of_another_user_is_accepted_once_the_row_of_the_sync_is_deleted(
    listing: Listing, run: Any, tmp_path: Path
) -> None:
    listing.rows = [row(number) for number in range(3)]
    run()
    with contextlib.closing(sqlite3.connect(tmp_path / "warehouse.db")) as database, database:
        database.execute("DELETE FROM outbound_transfer_transfer_sync")
    listing.rows = [row(number, id=f"bob{number}") for number in range(150)]
    assert run() == {"pages": 2, "transfers": 150, "new_transfers": 150, "outstanding": 150}


def test_many_new_transfers_are_no_sign_of_another_user(listing: Listing, run: Any) -> None:
    listing.rows = [row(number, status="complete") for number in range(20)]
    run()
    del listing.rows[16:], listing.rows[2]
    listing.rows += [row(number) for number in range(20, 320)]
    listing.asked.clear()
    assert run()["new_transfers"] == 300
    assert [target for target in listing.asked if "?" not in target] == [
        f"/v1/transfers/t{n}" for n in range(19, 14, -1)
    ]


def test_a_deleted_transfer_is_marked_and_a_shown_one_no_longer(listing: Listing, run: Any) -> None:
    rows = listing.rows = [row(number) for number in range(5)]
    run()
    listing.rows = rows[:2] + rows[3:]
    assert run()["outstanding"] == 4
    listing.rows = rows
    assert run()["outstanding"] == 5


def test_two_connections_of_one_user_share_the_tables(
    listing: Listing, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing.rows = [row(number, status="complete") for number in range(150)]
    run()
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"])
    for _ in range(3):
        other = TransfersToSqlOperator(task_id="list", sql_conn_id="warehouse", outbound_transfer_conn_id="other")
        assert other.execute({})["new_transfers"] == 0
        assert run()["new_transfers"] == 0


@pytest.mark.parametrize("claimed", ["2999-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "soon", None])
def test_an_absurd_time_loses_no_transfer(listing: Listing, run: Any, claimed: str | None) -> None:
    listing.rows = [row(number) for number in range(5)]
    listing.rows.append(row(5, sent_at=claimed, status="complete"))
    run()
    listing.rows += [row(number) for number in range(6, 400)]
    listing.rows[310]["sent_at"] = claimed
    assert run()["new_transfers"] == 394


def test_a_listing_without_end_ends(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def handle(stream: socket.socket, request: bytes) -> None:
        asked.append(request)
        stream.sendall(answer(json.dumps({"data": [], "next_cursor": str(len(asked))}).encode()))

    with serving(handle) as server:
        value = {"conn_type": "outbound_transfer", "host": server.url(), "password": "key"}
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(value))
        assert run()["pages"] == len(asked) <= 3


def saved(tables: TransferTables, at: datetime, **fields: Any) -> None:
    page = decode_page(json.dumps({"data": [row(1, **fields)], "next_cursor": None}).encode())
    tables.save(page.data, at)


STORED = "SELECT status, picked_up_count FROM outbound_transfer_transfers"
PICKED_UP = [{"email": "ann@example.com", "name": "ann", "picked_up_at": "2026-03-01T09:00:00Z"}]


@pytest.mark.parametrize("off", [timedelta(days=365), timedelta(days=-365)], ids=["ahead", "behind"])
def test_a_wrong_clock_holds_no_status_back(warehouse_hook: Any, off: timedelta) -> None:
    of_wrong_clock, of_right_clock = (
        TransferTables(Warehouse(warehouse_hook), "acme", "key", clock=lambda at=at: at) for at in (NOW + off, NOW)
    )
    first, then = (of_wrong_clock, of_right_clock) if off > timedelta(0) else (of_right_clock, of_wrong_clock)
    first.sync_state()
    saved(first, first.now())
    assert warehouse_hook.fetch(STORED) == [("pending", 0)]
    saved(then, then.now(), status="partial", recipients=PICKED_UP)
    assert warehouse_hook.fetch(STORED) == [("partial", 1)]
    saved(then, then.now(), status="canceled")
    assert warehouse_hook.fetch(STORED) == [("canceled", 1)]


def test_how_far_a_clock_that_is_ahead_says_the_listing_was_read_is_not_believed(warehouse_hook: Any) -> None:
    """The listing would never be read to its end again."""
    ahead, right = (
        TransferTables(Warehouse(warehouse_hook), "acme", "key", clock=lambda at=at: at)
        for at in (NOW + timedelta(days=365), NOW)
    )
    ahead.sync_state()
    ahead.mark_listed(format_timestamp(ahead.now()))
    assert right.sync_state().synced_until is None
    right.mark_listed(format_timestamp(NOW))
    assert right.sync_state().synced_until == format_timestamp(NOW)


@pytest.mark.parametrize("last", ["complete", "expired", "canceled"])
def test_a_terminal_status_stays_whatever_clock_read_the_one_before(warehouse_hook: Any, last: str) -> None:
    tables = TransferTables(Warehouse(warehouse_hook), "acme", "key", clock=lambda: NOW)
    tables.sync_state()
    saved(tables, NOW, status=last, recipients=PICKED_UP)
    for before in ("pending", "partial", "a new one"):
        saved(tables, NOW + timedelta(days=365), status=before)
    assert warehouse_hook.fetch(STORED) == [(last, 1)]


def test_all_workers_take_the_time_of_the_database(warehouse_hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Warehouse, "epoch_time", lambda *_: NOW.timestamp())
    tables, feed = (
        TransferTables(Warehouse(warehouse_hook), "acme", "key"),
        EventStore(Warehouse(warehouse_hook), "acme"),
    )
    tables.sync_state()
    saved(tables, tables.now())
    tables.mark_listed(format_timestamp(NOW))
    feed.load_page(page_of_feed(feed.get_or_create_cursor(), event(1), b"junk"))
    for table, *columns in (
        ("transfers", "first_seen_at", "seen_at"),
        ("transfer_sync", "updated_at"),
        ("events", "loaded_at"),
        ("rejected_lines", "loaded_at"),
        ("feed_cursor", "updated_at"),
        ("feed_polls", "polled_at"),
    ):
        (times,) = warehouse_hook.fetch(f"SELECT {', '.join(columns)} FROM outbound_transfer_{table}")
        texts = {format_timestamp(at) if isinstance(at, datetime) else at for at in times}
        assert texts == {format_timestamp(NOW)}, table
