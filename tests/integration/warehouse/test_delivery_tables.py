"""The ledger's rows: what several tasks know of one delivery, in any order, on each database."""

from __future__ import annotations

import itertools
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.ledger.recorder import DeliveryRecorder, redacted_summary
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.models import File, Recipient, Transfer
from outbound_transfer.protocol.personal_data import AS_THEY_ARE, AddressSearch, RecipientNaming
from outbound_transfer.tasks.errors import fail_without_retry
from outbound_transfer.warehouse import deliveries
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.deliveries import DeliveryFailure, DeliveryTables, DeliveryUpdate, TaskRef, merge
from outbound_transfer.warehouse.personal_data import SqlPersonalData
from outbound_transfer.warehouse.tables import DELIVERIES
from outbound_transfer.warehouse.timestamps import format_timestamp
from outbound_transfer.warehouse.transfers import TransferTables

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
ANN, BOB = Recipient("ann@example.com"), Recipient("bob@example.com")
DRAFT = Transfer("t1", "draft", "Report", "2026-03-02T12:00:00Z", recipients=(ANN, BOB), files=())
SENT = Transfer(
    "t1", "pending", "Report", "2026-02-14T12:00:00Z", recipients=(ANN, BOB), sent_at="2026-01-31T12:01:00Z"
)
PARTIAL = msgspec.structs.replace(SENT, status="partial", recipients=(Recipient("ann@example.com", "Ann", "2026"), BOB))
COMPLETE = msgspec.structs.replace(
    SENT, status="complete", recipients=tuple(Recipient(each, None, "2026") for each in ("ann", "bob"))
)


def get_account() -> str:
    return "acme"


class Book:
    """Rows in memory; every task that writes has a recorder of its own."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.notes: list[DeliveryUpdate] = []
        self.now = BEGAN

    def recorder(
        self, task_id: str = "deliver", try_number: int = 1, *, owns_delivery: bool = True
    ) -> DeliveryRecorder:
        task = TaskRef("conn", "dag", task_id, "run", -1, try_number, owns_delivery=owns_delivery)
        return DeliveryRecorder(get_account, task, self.put, clock=lambda: self.now)

    def put(self, note: DeliveryUpdate) -> None:
        self.notes.append(note)
        row = merge(self.rows.get(note.transfer_id), note, note.at)
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


def deliver(recorder: DeliveryRecorder) -> None:
    recorder.record_transfer(DRAFT)
    recorder.record_file("t1", "a.csv", 3, "aa")
    recorder.record_file("t1", "b.csv", 4, "bb")
    recorder.record_transfer(SENT)


def test_a_delivery_is_one_row_from_draft_to_end(book: Book) -> None:
    deliver(book.recorder())
    assert (book.row["status"], book.row["size_bytes"], book.row["recipient_count"], book.row["error"]) == (
        "pending",
        7,
        2,
        None,
    )
    assert (book.row["created_at"], book.row["sent_at"]) == (format_timestamp(BEGAN), "2026-01-31T12:01:00.000000Z")
    assert book.row["expires_at"] == "2026-02-14T12:00:00.000000Z"
    watch = book.recorder("wait", owns_delivery=False)
    watch.record_transfer(PARTIAL)
    assert (book.row["status"], book.row["picked_up_count"], book.row["finished_at"]) == ("partial", 1, None)
    ended = format_timestamp(book.now)
    watch.record_transfer(COMPLETE)
    watch.record_transfer(COMPLETE)
    assert (book.row["status"], book.row["picked_up_count"], book.row["finished_at"]) == ("complete", 2, ended)
    assert (book.row["task_id"], book.files) == ("deliver", [("a.csv", 3, "aa"), ("b.csv", 4, "bb")])


def test_notes_in_any_order_come_to_one_row() -> None:
    """A thread may be late, a task may be run again: what came later is never undone."""
    source = Book()
    deliver(source.recorder())
    source.recorder("wait", owns_delivery=False).record_transfer(COMPLETE)
    first, *rest = [source.notes[0], source.notes[2], source.notes[4], source.notes[-1]]
    for order in itertools.permutations([*rest, first, first]):
        book = Book()
        for note in (first, *order):
            book.put(note)
        assert (book.row["status"], book.row["picked_up_count"], book.row["size_bytes"]) == ("complete", 2, 7), order
        assert book.files == [("a.csv", 3, "aa"), ("b.csv", 4, "bb")]


def test_three_tasks_share_a_row_that_the_first_begins(book: Book) -> None:
    book.recorder("create").record_transfer(DRAFT)
    left, right = book.recorder("left"), book.recorder("right")
    left.record_transfer(DRAFT), right.record_transfer(DRAFT)
    left.record_file("t1", "a.csv", 3, "aa")
    right.record_file("t1", "b.csv", 4, "bb")
    book.recorder("send").record_transfer(SENT)
    assert (book.row["task_id"], book.row["status"]) == ("create", "pending")
    assert book.files == [("a.csv", 3, "aa"), ("b.csv", 4, "bb")]


def test_a_row_that_could_not_be_begun_is_begun_by_the_next_who_delivers(book: Book) -> None:
    book.recorder("wait", owns_delivery=False).record_transfer(SENT)
    assert book.rows == {}, "who only waits makes no delivery"
    book.recorder("discard", owns_delivery=False).record_draft_removed("t1")
    assert book.rows == {}
    book.recorder("send").record_transfer(SENT)
    assert (book.row["task_id"], book.row["created_at"]) == ("send", format_timestamp(BEGAN + timedelta(seconds=2)))


def test_an_error_stands_until_the_next_try_and_survives_a_discard(book: Book) -> None:
    first = book.recorder()
    first.record_transfer(DRAFT)
    first.record_error(ValueError("429: for bob@example.com, wait\nTraceback: more"))
    assert book.row["error"] == "429: for *** wait".replace("***", "***,")
    book.recorder("discard", owns_delivery=False).record_draft_removed("t1")
    assert (book.row["status"], book.row["error"] is not None) == ("discarded", True)
    assert book.row["finished_at"] is not None
    again = book.recorder(try_number=2)
    again.set_current("t1")
    again.record_error(RuntimeError())
    assert (book.row["error"], book.row["try_number"]) == ("RuntimeError", 2)
    again.record_transfer(DRAFT)  # an answer that was late
    assert book.row["status"] == "discarded"


def test_an_error_before_anything_was_made_is_nobody_s(book: Book) -> None:
    book.recorder().record_error(ValueError("no file matches"))
    assert book.notes == []


def test_a_success_takes_the_error_away(book: Book) -> None:
    first = book.recorder()
    first.record_transfer(DRAFT)
    first.record_error(ValueError("broken"))
    deliver(book.recorder(try_number=2))
    assert (book.row["error"], book.row["try_number"], book.row["status"]) == (None, 2, "pending")


def test_files_that_are_removed_and_attached_again_have_the_digest_of_what_is_there(book: Book) -> None:
    first = book.recorder()
    first.record_transfer(DRAFT)
    first.record_file("t1", "a.csv", 3, "old")
    first.record_file("t1", "b.csv", 4, "bb")
    second = book.recorder(try_number=2)
    second.record_transfer(DRAFT)
    second.record_file_removed("t1", "a.csv")
    assert book.files == [("b.csv", 4, "bb")]
    second.record_file("t1", "a.csv", 3, "new")
    assert book.files == [("a.csv", 3, "new"), ("b.csv", 4, "bb")]


def test_what_the_service_lists_of_a_sent_transfer_is_the_last_word(book: Book) -> None:
    deliver(book.recorder())
    listed = (File("1", "a.csv", 3), File("2", "b.csv", 5), File("3", "c.csv", 6))
    book.recorder().record_transfer(msgspec.structs.replace(SENT, files=listed))
    assert book.files == [("a.csv", 3, "aa"), ("b.csv", 5, None), ("c.csv", 6, None)]


def test_a_journal_that_is_not_kept_takes_nothing_down() -> None:
    recorder = DeliveryRecorder()
    recorder.record_transfer(DRAFT)
    recorder.record_file("t1", "a.csv", 3, "aa")
    recorder.record_error(ValueError())
    assert not recorder.is_enabled


def test_a_step_that_cannot_be_taken_down_breaks_nothing(caplog) -> None:
    def broken(note: DeliveryUpdate) -> None:
        raise OSError("for ann@example.com")

    DeliveryRecorder(get_account, TaskRef("conn", "dag", "deliver", "run", -1, 1), broken).record_transfer(DRAFT)
    assert "Could not record a step in the delivery ledger: OSError: for ***" in caplog.text


def test_an_error_is_a_bounded_line() -> None:
    assert len(redacted_summary(ValueError("x" * 10_000))) == 500


NASTY = 'Über\t"final"\\ 報告\u2028\n.csv'


def test_a_row_is_kept_on_every_database(any_hook) -> None:
    tables = DeliveryTables(Warehouse(any_hook), clock=lambda: BEGAN)
    task = TaskRef("conn", "dag", "deliver", "run", 3, 1)
    recorder = DeliveryRecorder(get_account, task, tables.save, clock=lambda: BEGAN)
    recorder.record_transfer(msgspec.structs.replace(DRAFT, subject="A\0B"))
    recorder.record_file("t1", NASTY, 3, "aa")
    recorder.record_transfer(SENT)
    recorder.record_transfer(SENT)
    (row,) = stored(any_hook)
    assert (row["subject"], row["status"], row["map_index"], row["size_bytes"]) == ("A\ufffdB", "pending", 3, 3)
    assert row["files"] == [{"name": NASTY, "size": 3, "sha256": "aa"}]
    recorder.record_error(ValueError("late"))
    DeliveryRecorder(get_account, msgspec.structs.replace(task, owns_delivery=False), tables.save).record_transfer(
        COMPLETE
    )
    (row,) = stored(any_hook)
    assert (row["status"], row["picked_up_count"], row["error"], row["task_id"]) == ("complete", 2, "late", "deliver")
    assert row["finished_at"] is not None


def test_failures_before_a_draft_are_one_row_until_there_is_a_draft(any_hook) -> None:
    tables = DeliveryTables(Warehouse(any_hook), clock=lambda: BEGAN)

    def recorder(try_number: int, map_index: int = 0) -> DeliveryRecorder:
        task = TaskRef("conn", "dag", "deliver", "run", map_index, try_number)
        return DeliveryRecorder(get_account, task, tables.save, subject="A\0B", clock=lambda: BEGAN)

    for number in (1, 2):
        recorder(number).record_error(FileNotFoundError(f"no file {number} for ann@example.com"))
    recorder(1, map_index=1).record_error(FileNotFoundError("no other file"))
    one, other = sorted(stored(any_hook), key=lambda row: row["map_index"])
    assert (one["account"], one["status"], one["try_number"], one["subject"]) == ("-", "failed", 2, "A\ufffdB")
    assert (one["error"], other["error"]) == ("no file 2 for ***", "no other file")
    assert (one["created_at"], one["sent_at"], one["files"]) == (other["created_at"], None, [])

    third = recorder(3)
    third.record_transfer(DRAFT)
    one, other = sorted(stored(any_hook), key=lambda row: row["map_index"])
    assert (one["transfer_id"], one["status"], one["error"], other["status"]) == ("t1", "draft", None, "failed")

    recorder(4).record_error(ValueError("the key is wrong"))  # the draft is there, though this try did not get to it
    recorder(3).record_error(ValueError("an older one, late"))
    one, _ = sorted(stored(any_hook), key=lambda row: row["map_index"])
    assert (one["transfer_id"], one["error"], one["try_number"]) == ("t1", "the key is wrong", 4)

    third.record_draft_removed("t1")
    recorder(5).record_error(ValueError("a new start"))
    found = {row["status"]: row["error"] for row in stored(any_hook) if row["map_index"] == 0}
    assert found == {"discarded": None, "failed": "a new start"}


def test_recipients_are_recorded_once_sent_and_their_pickups_stay(any_hook) -> None:
    tables = DeliveryTables(Warehouse(any_hook), clock=lambda: BEGAN)
    task = TaskRef("conn", "dag", "deliver", "run", -1, 1)

    def save(transfer: Transfer, *, naming: RecipientNaming = AS_THEY_ARE) -> None:
        DeliveryRecorder(get_account, task, tables.save, naming=naming).record_transfer(transfer)

    def names() -> list[tuple[str, str, Any]]:
        ((found,),) = any_hook.fetch("SELECT recipients FROM outbound_transfer_delivery_recipients")
        people = json.loads(found) if isinstance(found, str) else found
        return [(each["email"], each["name"], each["picked_up_at"]) for each in people]

    save(DRAFT)
    save(SENT, naming=RecipientNaming("none"))
    assert not any(each == "delivery_recipients" for each in groups(any_hook))
    save(SENT)
    assert names() == [("ann@example.com", "", None), ("bob@example.com", "", None)]
    hostile = Recipient("b\0\ud800" + "x" * 9_999, '"]}\\', "2026-02-01T00:00:00Z")
    save(
        msgspec.structs.replace(SENT, recipients=(Recipient("ann@example.com", "Ann", "2026-02-01T00:00:00Z"), hostile))
    )
    email, name, _ = names()[1]
    assert (email[:4], len(email), name) == ("b\ufffd?x", 320, '"]}\\')
    save(SENT)
    ann, bob = names()
    assert (ann, bob) == (("ann@example.com", "", "2026-02-01T00:00:00.000000Z"), ("bob@example.com", "", None))
    many = tuple(Recipient(f"{number}@example.com") for number in range(250))
    save(msgspec.structs.replace(SENT, recipients=many))
    assert len(names()) == 250


def test_who_is_erased_stays_erased_whatever_a_task_writes(any_hook) -> None:
    warehouse = Warehouse(any_hook)
    tables, personal = DeliveryTables(warehouse, clock=lambda: BEGAN), SqlPersonalData(warehouse, "ledger")
    task, subject = TaskRef("conn", "dag", "deliver", "run", -1, 1), "For ann@example.com"
    picked_up = tuple(Recipient(each.email, "", "2026-02-01T00:00:00Z") for each in SENT.recipients)

    def write(recipients: tuple[Recipient, ...]) -> None:
        tables.save(
            DeliveryFailure(
                task=msgspec.structs.replace(task, task_id="b"), subject=subject, error="e", at=format_timestamp(BEGAN)
            )
        )
        recorder = DeliveryRecorder(get_account, task, tables.save)
        sent = msgspec.structs.replace(SENT, subject=subject, recipients=recipients)
        recorder.record_transfer(sent)
        recorder.record_file(SENT.id, "ann@example.com.csv", 1, "ab")
        recorder.record_approval(SENT.id, "ann@example.com", "2026-02-01T00:00:00Z")

    write(SENT.recipients)
    assert personal.erase(AddressSearch("ann@example.com")) == {"deliveries": 2, "delivery_recipients": 1}
    write(picked_up)
    assert personal.find(AddressSearch("ann@example.com")) == {}
    ((found,),) = any_hook.fetch("SELECT recipients FROM outbound_transfer_delivery_recipients")
    people = json.loads(found) if isinstance(found, str) else found
    at = "2026-02-01T00:00:00.000000Z"
    assert people == [
        {"email": "(erased)", "name": "(erased)", "picked_up_at": None},
        {"email": "bob@example.com", "name": "", "picked_up_at": at},
    ]


@pytest.mark.parametrize("kind", ["psycopg", "mysqlclient"])
def test_an_erasure_waits_for_a_task_that_writes(hook_of, kind, monkeypatch) -> None:
    """Otherwise the task writes what it has read before."""
    tables, personal = DeliveryTables(Warehouse(hook_of(kind))), SqlPersonalData(Warehouse(hook_of(kind)), kind)
    recorder = DeliveryRecorder(get_account, TaskRef("conn", "dag", "deliver", "run", -1, 1), tables.save)
    recorder.record_transfer(SENT)
    search, merge, erasures = AddressSearch("ann@example.com"), deliveries.merge_recipients, []

    def interrupted(*arguments: Any) -> Any:
        erasures.append(threading.Thread(target=personal.erase, args=(search,)))
        erasures[0].start()
        erasures[0].join(1)
        return merge(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(deliveries, "merge_recipients", interrupted)
        bob = Recipient("bob@example.com", "", "2026-02-01T00:00:00Z")
        recorder.record_transfer(msgspec.structs.replace(SENT, recipients=(SENT.recipients[0], bob)))
    erasures[0].join()
    assert personal.find(search) == {}


def test_what_stays_in_doubt_is_counted_until_somebody_knows(any_hook) -> None:
    now = [BEGAN]
    warehouse = Warehouse(any_hook)
    tables = DeliveryTables(warehouse, clock=lambda: now[0])
    task = TaskRef("conn", "dag", "deliver", "run", -1, 1)
    recorder = DeliveryRecorder(get_account, task, tables.save, clock=lambda: now[0])
    counted: list[int] = []

    def count(conn_id: str = "conn", **later: float) -> int:
        now[0] = BEGAN + timedelta(**later)
        return tables.count_in_doubt(conn_id)

    assert count() == 0
    for transfer_id in ("t1", "t2", "t3"):
        recorder.record_transfer(msgspec.structs.replace(DRAFT, id=transfer_id))
        recorder.record_send(transfer_id, in_doubt=True)
    counted += [count(minutes=14), count(minutes=16), count("other", minutes=16)]
    recorder.record_transfer(SENT)
    counted.append(count(hours=1))
    listed = TransferTables(warehouse, get_account(), "key", clock=lambda: BEGAN)
    listed.sync_state()
    listed.save([msgspec.structs.replace(SENT, id="t2")], BEGAN)
    counted += [count(hours=1), count(days=31)]
    assert counted == [0, 3, 0, 2, 1, 0]


def groups(hook: Any) -> list[str]:
    return [row[0] for row in hook.fetch("SELECT component FROM outbound_transfer_schema_version")]


def test_many_may_write_one_row_at_once(hook) -> None:
    """Each has files of its own, and none is lost."""
    failures: list[Exception] = []

    def attach(number: int) -> None:
        recorder = DeliveryRecorder(
            get_account, TaskRef("conn", "dag", f"attach{number}", "run", -1, 1), save(failures)
        )
        recorder.record_transfer(DRAFT)
        for each in range(3):
            recorder.record_file("t1", f"{number}-{each}", 1, "aa")

    def save(failures):
        tables = DeliveryTables(Warehouse(hook))

        def put(note: DeliveryUpdate) -> None:
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


def stored(hook) -> list[dict[str, Any]]:
    names = [column.name for column in DELIVERIES.columns]
    rows = [
        dict(zip(names, row, strict=True))
        for row in hook.fetch(f"SELECT {', '.join(names)} FROM outbound_transfer_deliveries")
    ]
    for row in rows:
        row["files"] = json.loads(row["files"]) if isinstance(row["files"], str) else row["files"]
    return rows


def test_the_whole_text_is_kept_of_errors_of_this_package_alone() -> None:
    with pytest.raises(AirflowFailException) as own, fail_without_retry():
        raise InvalidDelivery("wrong:\n- one\n- two")
    assert redacted_summary(own.value) == "wrong: - one - two"
    foreign = ValueError("wrong\nDETAIL: a row")
    foreign.__context__ = InvalidDelivery("wrong:\n- one")
    assert redacted_summary(foreign) == "wrong"
