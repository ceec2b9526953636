"""The ledger's rows: what several tasks know of one delivery, in any order, on each database."""

from __future__ import annotations

import itertools
import json
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from outbound_transfer.ledger.journal import Journal, in_a_line
from outbound_transfer.protocol.models import File, Recipient, Transfer
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.deliveries import DeliveryTables, Note, Task, merged
from outbound_transfer.warehouse.rows import instant
from outbound_transfer.warehouse.tables import DELIVERIES
from support.postgres import postgres, postgres_server  # noqa: F401
from support.warehouses import any_hook, hook, hook_of, memory  # noqa: F401

BEGAN = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
ANN, BOB = Recipient("ann@example.com"), Recipient("bob@example.com")
DRAFT = Transfer("t1", "draft", "Report", "2026-03-02T12:00:00Z", recipients=(ANN, BOB), files=())
SENT = Transfer(
    "t1", "pending", "Report", "2026-02-14T12:00:00Z", recipients=(ANN, BOB), sent_at="2026-01-31T12:01:00Z"
)
PARTIAL = msgspec.structs.replace(SENT, status="partial", recipients=(Recipient("ann@example.com", "Ann", "2026"), BOB))
COMPLETE = msgspec.structs.replace(
    SENT, status="complete", recipients=tuple(Recipient(each, None, "2026") for each in ("ann", "bob"))
)


class Book:
    """Rows in memory; every task that writes has a journal of its own."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.now = BEGAN

    def journal(self, task_id: str = "deliver", try_number: int = 1, *, delivers: bool = True) -> Journal:
        task = Task("conn", "dag", task_id, "run", -1, try_number, delivers=delivers)
        return Journal("acme", task, self.put, clock=lambda: self.now)

    def put(self, note: Note) -> None:
        self.notes.append(note)
        row = merged(self.rows.get(note.transfer_id), note, note.at)
        if row is not None:
            self.rows[note.transfer_id] = row
        self.now += timedelta(seconds=1)

    @property
    def row(self) -> dict[str, Any]:
        (row,) = self.rows.values()
        return row

    @property
    def files(self) -> list[tuple[str, int, str | None]]:
        return [(file["name"], file["size"], file["sha256"]) for file in self.row["files"]]


@pytest.fixture
def book() -> Book:
    return Book()


def deliver(journal: Journal) -> None:
    journal.saw(DRAFT)
    journal.holds("t1", "a.csv", 3, "aa", sole=True)
    journal.holds("t1", "b.csv", 4, "bb", sole=True)
    journal.saw(SENT)


def test_a_delivery_is_one_row_from_draft_to_end(book: Book) -> None:
    deliver(book.journal())
    assert (book.row["status"], book.row["bytes"], book.row["recipients"], book.row["error"]) == ("pending", 7, 2, None)
    assert (book.row["created_at"], book.row["sent_at"]) == (instant(BEGAN), "2026-01-31T12:01:00.000000Z")
    assert book.row["expires_at"] == "2026-02-14T12:00:00.000000Z"
    watch = book.journal("wait", delivers=False)
    watch.saw(PARTIAL)
    assert (book.row["status"], book.row["collected"], book.row["ended_at"]) == ("partial", 1, None)
    ended = instant(book.now)
    watch.saw(COMPLETE)
    watch.saw(COMPLETE)
    assert (book.row["status"], book.row["collected"], book.row["ended_at"]) == ("complete", 2, ended)
    assert (book.row["task_id"], book.files) == ("deliver", [("a.csv", 3, "aa"), ("b.csv", 4, "bb")])


def test_notes_in_any_order_come_to_one_row() -> None:
    """A thread may be late, a task may be run again: what came later is never undone."""
    source = Book()
    deliver(source.journal())
    source.journal("wait", delivers=False).saw(COMPLETE)
    first, *rest = [source.notes[0], source.notes[2], source.notes[4], source.notes[-1]]
    for order in itertools.permutations([*rest, first, first]):
        book = Book()
        for note in (first, *order):
            book.put(note)
        assert (book.row["status"], book.row["collected"], book.row["bytes"]) == ("complete", 2, 7), order
        assert book.files == [("a.csv", 3, "aa"), ("b.csv", 4, "bb")]


def test_three_tasks_share_a_row_that_the_first_begins(book: Book) -> None:
    book.journal("create").saw(DRAFT)
    left, right = book.journal("left"), book.journal("right")
    left.saw(DRAFT), right.saw(DRAFT)
    left.holds("t1", "a.csv", 3, "aa", sole=True)
    right.holds("t1", "b.csv", 4, "bb", sole=True)
    book.journal("send").saw(SENT)
    assert (book.row["task_id"], book.row["status"]) == ("create", "pending")
    assert book.files == [("a.csv", 3, "aa"), ("b.csv", 4, "bb")]


def test_a_row_that_could_not_be_begun_is_begun_by_the_next_who_delivers(book: Book) -> None:
    book.journal("wait", delivers=False).saw(SENT)
    assert book.rows == {}, "who only waits makes no delivery"
    book.journal("discard", delivers=False).removed("t1")
    assert book.rows == {}
    book.journal("send").saw(SENT)
    assert (book.row["task_id"], book.row["created_at"]) == ("send", instant(BEGAN + timedelta(seconds=2)))


def test_an_error_stands_until_the_next_try_and_survives_a_discard(book: Book) -> None:
    first = book.journal()
    first.saw(DRAFT)
    first.failed(ValueError("429: for bob@example.com, wait\nTraceback: more"))
    assert book.row["error"] == "429: for *** wait".replace("***", "***,")
    book.journal("discard", delivers=False).removed("t1")
    assert (book.row["status"], book.row["error"] is not None) == ("removed", True)
    assert book.row["ended_at"] is not None
    again = book.journal(try_number=2)
    again.about("t1")
    again.failed(RuntimeError())
    assert (book.row["error"], book.row["try_number"]) == ("RuntimeError", 2)
    again.saw(DRAFT)  # an answer that was late
    assert book.row["status"] == "removed"


def test_an_error_before_anything_was_made_is_nobody_s(book: Book) -> None:
    book.journal().failed(ValueError("no file matches"))
    assert book.notes == []


def test_a_success_takes_the_error_away(book: Book) -> None:
    first = book.journal()
    first.saw(DRAFT)
    first.failed(ValueError("broken"))
    deliver(book.journal(try_number=2))
    assert (book.row["error"], book.row["try_number"], book.row["status"]) == (None, 2, "pending")


def test_files_that_are_removed_and_attached_again_have_the_digest_of_what_is_there(book: Book) -> None:
    first = book.journal()
    first.saw(DRAFT)
    first.holds("t1", "a.csv", 3, "old", sole=True)
    first.holds("t1", "b.csv", 4, "bb", sole=True)
    second = book.journal(try_number=2)
    second.saw(DRAFT)
    second.drops("t1", "a.csv")
    assert book.files == [("b.csv", 4, "bb")]
    second.holds("t1", "a.csv", 3, "new", sole=False)
    assert book.files == [("a.csv", 3, "new"), ("b.csv", 4, "bb")]
    third = book.journal(try_number=3)
    third.holds("t1", "a.csv", 3, "", sole=False)
    third.holds("t1", "b.csv", 4, "", sole=True)
    assert book.files == [("a.csv", 3, None), ("b.csv", 4, "bb")], "unknown where two versions were planned"


def test_what_the_service_lists_of_a_sent_transfer_is_the_last_word(book: Book) -> None:
    deliver(book.journal())
    listed = (File("1", "a.csv", 3), File("2", "b.csv", 5), File("3", "c.csv", 6))
    book.journal().saw(msgspec.structs.replace(SENT, files=listed))
    assert book.files == [("a.csv", 3, "aa"), ("b.csv", 5, None), ("c.csv", 6, None)]


def test_a_journal_that_is_not_kept_takes_nothing_down() -> None:
    journal = Journal()
    journal.saw(DRAFT)
    journal.holds("t1", "a.csv", 3, "aa", sole=True)
    journal.failed(ValueError())
    assert not journal.is_kept


def test_a_step_that_cannot_be_taken_down_breaks_nothing(caplog) -> None:
    def broken(note: Note) -> None:
        raise OSError("for ann@example.com")

    Journal("acme", Task("conn", "dag", "deliver", "run", -1, 1), broken).saw(DRAFT)
    assert "not in the delivery ledger: OSError: for ***" in caplog.text


def test_an_error_is_a_bounded_line() -> None:
    assert len(in_a_line(ValueError("x" * 10_000))) == 500


NASTY = 'Über\t"final"\\ 報告\u2028\n.csv'


def test_a_row_is_kept_on_every_database(any_hook) -> None:
    tables = DeliveryTables(Warehouse(any_hook), clock=lambda: BEGAN)
    task = Task("conn", "dag", "deliver", "run", 3, 1)
    journal = Journal("acme", task, tables.save, clock=lambda: BEGAN)
    journal.saw(msgspec.structs.replace(DRAFT, subject="A\0B"))
    journal.holds("t1", NASTY, 3, "aa", sole=True)
    journal.saw(SENT)
    journal.saw(SENT)
    (row,) = stored(any_hook)
    assert (row["subject"], row["status"], row["map_index"], row["bytes"]) == ("A\ufffdB", "pending", 3, 3)
    assert row["files"] == [{"name": NASTY, "size": 3, "sha256": "aa"}]
    journal.failed(ValueError("late"))
    Journal("acme", msgspec.structs.replace(task, delivers=False), tables.save).saw(COMPLETE)
    (row,) = stored(any_hook)
    assert (row["status"], row["collected"], row["error"], row["task_id"]) == ("complete", 2, "late", "deliver")
    assert row["ended_at"] is not None


def test_many_may_write_one_row_at_once(hook) -> None:
    """Each has files of its own, and none is lost."""
    failures: list[Exception] = []

    def attach(number: int) -> None:
        journal = Journal("acme", Task("conn", "dag", f"attach{number}", "run", -1, 1), save(failures))
        journal.saw(DRAFT)
        for each in range(3):
            journal.holds("t1", f"{number}-{each}", 1, "aa", sole=True)

    def save(failures):
        tables = DeliveryTables(Warehouse(hook))

        def put(note: Note) -> None:
            try:
                tables.save(note)
            except Exception as error:
                failures.append(error)

        return put

    threads = [threading.Thread(target=attach, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    (row,) = stored(hook)
    assert {file["name"] for file in row["files"]} == {f"{number}-{each}" for number in range(4) for each in range(3)}


def test_calls_are_added_once(hook) -> None:
    tables = DeliveryTables(Warehouse(hook))
    rows = [
        ("1", instant(BEGAN), "acme", "conn", "list files", 429, 3),
        ("2", instant(BEGAN), "acme", "conn", "send", 0, 1),
    ]
    tables.count(rows)
    tables.count(rows)
    query = "SELECT operation, status, calls FROM outbound_transfer_calls ORDER BY call_id"
    assert hook.fetch(query) == [("list files", 429, 3), ("send", 0, 1)]


def stored(hook) -> list[dict[str, Any]]:
    names = [column.name for column in DELIVERIES.columns]
    rows = [
        dict(zip(names, row, strict=True))
        for row in hook.fetch(f"SELECT {', '.join(names)} FROM outbound_transfer_deliveries")
    ]
    for row in rows:
        row["files"] = json.loads(row["files"]) if isinstance(row["files"], str) else row["files"]
    return rows
