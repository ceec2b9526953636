"""Transfers as tables where the service's answers are poisoned: by a raw server, on each warehouse."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from support.airflow_names import AirflowFailException
from support.raw_server import answer, serving


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


@pytest.fixture(params=["sqlite", "psycopg", "mysqlclient"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each database as the value of an Airflow connection."""
    if request.param == "sqlite":
        return json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")})
    if request.param == "psycopg":
        return str(request.getfixturevalue("postgres").airflow_connection)
    return str(request.getfixturevalue("mariadb").airflow_connection(request.param))


def test_rows_that_can_be_read_are_stored_in_each_database(listing, run, database, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database)
    listing.rows = [row(0), *(row(number, **poison) for number, poison in enumerate(POISON, 1)), row(len(POISON) + 1)]
    count = len(listing.rows)
    listing.rows += [row(90, id="nul \0"), row(91, id="x" * 501)]
    assert run()["new_transfers"] == count
    assert run()["new_transfers"] == 0


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


def test_a_key_of_another_user_is_accepted_once_the_row_of_the_sync_is_deleted(listing, run, tmp_path) -> None:
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


def test_two_connections_of_one_user_share_the_tables(listing, run, monkeypatch) -> None:
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


@pytest.mark.parametrize("last", ["complete", "expired", "canceled"])
def test_a_terminal_status_stays(listing: Listing, run: Any, tmp_path: Path, last: str) -> None:
    """An older answer may come late, from another replica."""
    listing.rows = [row(1, status=last)]
    run()
    for before in ("pending", "partial", "a new one"):
        listing.rows = [row(1, status=before), row(2)]
        run()
    with contextlib.closing(sqlite3.connect(tmp_path / "warehouse.db")) as stored:
        found = dict(stored.execute("SELECT transfer_id, status FROM outbound_transfer_transfers"))
    assert found == {"t1": last, "t2": "pending"}
