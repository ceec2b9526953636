"""Transfers as tables where the service's answers are poisoned: by a raw server, on each warehouse."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from support.airflow_names import AirflowFailException
from support.raw_server import answer, serving
from support.warehouses import sqlite_hook


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


class Listing:
    """A service with such rows; some are poisoned in its pages, some where they are read alone."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.poisoned: dict[str, Any] = {}
        self.alone: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.is_endless = False

    def handle(self, stream: socket.socket, request: bytes) -> None:
        target = request.split(b" ")[1].decode()
        self.asked.append(target)
        url = urlsplit(target)
        if transfer_id := url.path.removeprefix("/v1/transfers").removeprefix("/"):
            known = {one["id"]: json.dumps(one).encode() for one in self.rows} | self.alone
            refused = answer(b'{"error": "not_found", "message": ""}', "404 Not Found")
            stream.sendall(answer(known[transfer_id]) if transfer_id in known else refused)
            return
        start = int(parse_qs(url.query).get("cursor", ["0"])[0])
        data = [self.poisoned.get(one["id"], one) for one in self.rows[::-1][start : start + 100]]
        more = str(start + 100) if self.is_endless or start + 100 < len(self.rows) else None
        stream.sendall(answer(json.dumps({"data": data, "next_cursor": more}).encode()))


@pytest.fixture
def listing(monkeypatch) -> Iterator[Listing]:
    listing = Listing()
    with serving(listing.handle) as server:
        value = {"conn_type": "outbound_transfer", "host": server.url(), "password": "key"}
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(value))
        yield listing


@pytest.fixture
def run(tmp_path, monkeypatch) -> Callable[..., dict[str, Any]]:
    if "AIRFLOW_CONN_WAREHOUSE" not in os.environ:
        value = json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")})
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", value)
    given = {"task_id": "list", "sql_conn_id": "warehouse"}
    return lambda **arguments: TransfersToSqlOperator(**given, **arguments).execute({})


@pytest.fixture(params=["sqlite", "psycopg", "mysqlclient"])
def database(request, database_of) -> None:
    database_of(request.param)


def test_rows_that_can_be_read_are_stored_in_each_database(listing, database, run) -> None:
    listing.rows = [row(0), *(row(number, **poison) for number, poison in enumerate(POISON, 1)), row(len(POISON) + 1)]
    count = len(listing.rows)
    listing.rows += [row(90, id="nul \0"), row(91, id="x" * 501)]
    assert run()["new_transfers"] == count
    assert run()["new_transfers"] == 0


def test_rows_that_cannot_be_read_stop_no_others_and_are_read_by_themselves(listing, run) -> None:
    listing.rows = [row(number) for number in range(20)]
    listing.poisoned = {"t3": row(3, subject=None), "t4": row(4, id=None), "t5": None}
    listing.poisoned |= {"t6": row(6, subject=7), "t7": row(7, recipients=7)}
    listing.alone = {f"t{number}": b"<html>" for number in (6, 7)}
    assert run() == {"pages": 1, "transfers": 15, "new_transfers": 15, "outstanding": 16}, "t3 was read by itself"
    assert sum(target.endswith("/t6") for target in listing.asked) == 1, "each is tried once a run"
    listing.poisoned, listing.alone = {}, {}
    assert run() == {"pages": 1, "transfers": 20, "new_transfers": 4, "outstanding": 20}


def test_one_that_has_left_the_listing_and_cannot_be_read_is_not_gone(listing, run) -> None:
    listing.rows = [row(number) for number in range(5)]
    run()
    del listing.rows[1:4]
    listing.alone = {"t1": b'{"id": 1}', "t2": b"<html>"}
    assert run()["outstanding"] == 4, "t3, which came after them, is known to be gone"
    listing.rows[1:1] = [row(number) for number in range(1, 4)]
    assert run()["outstanding"] == 5, "what is shown is not gone"


@pytest.mark.parametrize(("status", "count", "outstanding"), [("pending", 130, 280), ("complete", 3, 150)])
def test_a_key_of_another_user_says_nothing_about_the_transfers_of_this_one(
    listing, run, status, count, outstanding
) -> None:
    alice = listing.rows = [row(number, status=status) for number in range(count)]
    run()
    alice += [row(number) for number in range(count, count + 150)]
    for bob in ([], [row(number, id=f"bob{number}") for number in range(300, 303)]):
        listing.rows = bob
        with pytest.raises(AirflowFailException, match="another user's"):
            run()
    listing.rows = alice
    result = run()
    assert (result["new_transfers"], result["outstanding"]) == (150, outstanding)


def test_a_key_of_another_user_is_accepted_once_the_rows_of_this_one_are_deleted(listing, run, tmp_path) -> None:
    """Also if no run has ended: the listing says no time."""
    listing.rows = [row(number, sent_at=None) for number in range(3)]
    run()
    listing.rows = [row(number, id=f"bob{number}") for number in range(150)]
    with pytest.raises(AirflowFailException, match="another user's"):
        run()
    for table in ("transfer_sync", "transfers"):
        sqlite_hook(tmp_path / "warehouse.db").run(f"DELETE FROM outbound_transfer_{table}")
    assert run() == {"pages": 2, "transfers": 150, "new_transfers": 150, "outstanding": 150}


@pytest.mark.parametrize("claimed", ["2999-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "soon", None])
def test_an_absurd_time_loses_no_transfer(listing, run, claimed) -> None:
    listing.rows = [row(number) for number in range(5)]
    listing.rows.append(row(5, sent_at=claimed, status="complete"))
    run()
    listing.rows += [row(number) for number in range(6, 400)]
    listing.rows[310]["sent_at"] = claimed
    assert run()["new_transfers"] == 394


def test_a_listing_without_end_ends(listing, run) -> None:
    listing.is_endless = True
    assert run()["pages"] == len(listing.asked) <= 3


@pytest.mark.parametrize("last", ["complete", "expired", "canceled"])
def test_a_terminal_status_stays(listing, run, tmp_path, last) -> None:
    """An older answer may come late, from another replica."""
    listing.rows = [row(1, status=last)]
    run()
    for before in ("pending", "partial", "a new one"):
        listing.rows = [row(1, status=before), row(2)]
        run()
    found = sqlite_hook(tmp_path / "warehouse.db").fetch("SELECT transfer_id, status FROM outbound_transfer_transfers")
    assert dict(found) == {"t1": last, "t2": "pending"}
