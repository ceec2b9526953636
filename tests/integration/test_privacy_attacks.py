"""Attacks on the promises of docs/privacy.md. Each test fails as long as its find stands."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from msgspec import to_builtins
from pyiceberg.types import StringType

from outbound_transfer.delivery.memory import digest
from outbound_transfer.lake.iceberg_personal import IcebergPersonalData
from outbound_transfer.lake.object_personal import ObjectPersonalData
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.addresses import normalize_address
from outbound_transfer.protocol.events import Event, Page
from outbound_transfer.protocol.identity import identity_of
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.protocol.personal_data import ERASED, only, redact
from outbound_transfer.protocol.poll_lease import ProcessState, SharedWaiter
from outbound_transfer.transfers.feed_ingest import FeedIngest
from outbound_transfer.transfers.progress import IngestProgress
from outbound_transfer.triggers.transfer import TransferTrigger
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.deliveries import DeliveryTables, DeliveryUpdate, RecipientPickup, TaskRef
from outbound_transfer.warehouse.errors import InvalidPrivacy, RowsRefused
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.key_rows import Key
from outbound_transfer.warehouse.maintenance import SqlFeedMaintenance
from outbound_transfer.warehouse.personal_rows import SqlPersonalData
from outbound_transfer.warehouse.poll_tables import PollTables
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now
from outbound_transfer.warehouse.transfers import TransferTables
from support.feed_pages import event, page
from support.iceberg import TABLE, open_lake
from support.object_folders import destination, local_store
from support.tasks import FakeTaskInstance, Person, SimulatedClock
from support.warehouses import sqlite_hook

ADDRESS = "ann@example.com"


class Feed:
    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.warehouse = Warehouse(self.hook)
        self.personal = SqlPersonalData(self.warehouse, "here")

    def load(self, *pages: Page) -> None:
        """As the ingestion does: what is refused is loaded as the refusal says."""
        for each in pages:
            store = EventStore(self.warehouse, "acme")
            assert store.get_or_create_cursor() == each.cursor
            try:
                store.load_page(each)
            except RowsRefused as refused:
                store.load_page(refused.page)

    @property
    def maintenance(self) -> SqlFeedMaintenance:
        return SqlFeedMaintenance(EventStore(self.warehouse, "acme"))

    def check(self, *, events: int, rejected: int = 0) -> None:
        assert list(self.maintenance.find_problems()) == []
        status = self.maintenance.status()
        assert (status.events, status.rejected) == (events, rejected)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        return self.hook.fetch(text)


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(sqlite_hook(tmp_path / "w.db"))


@pytest.mark.parametrize(
    ("address", "data"),
    [
        (ADDRESS, {"text": f"sent to {ADDRESS}", "name": "report.csv"}),
        (ADDRESS, {"email": f"Ann <{ADDRESS}>", "name": "Ann"}),
        (ADDRESS, {"url": f"mailto:{ADDRESS}", "phone": "1"}),
        ("a!b@example.com", {"email": "a!b@example.com"}),
    ],
)
def test_an_event_that_is_read_again_after_an_erasure_is_the_same(
    feed: Feed, address: str, data: dict[str, Any]
) -> None:
    one = page(0, event(0, data=data))
    feed.load(one)
    assert feed.personal.erase(address) == {"events": 1}
    feed.maintenance.reset(0)
    feed.load(one)
    feed.check(events=1)


def test_an_invalid_line_stays_invalid_when_an_address_is_erased(feed: Feed) -> None:
    one = page(0, b'{"event_id":"e0","type":"t","data":{"x":"\xff to ann@example.com"}}', event(1))
    feed.load(one)
    feed.check(events=1, rejected=1)
    feed.personal.erase(ADDRESS)
    assert feed.maintenance.replay_rejected_lines() == (0, 1)
    feed.maintenance.reset(0)
    feed.load(one)
    feed.check(events=1, rejected=1)
    assert feed.query("SELECT instr(raw, x'ff') > 0 FROM outbound_transfer_rejected_lines") == [(1,)]


def test_rejected_lines_keep_their_ids(feed: Feed) -> None:
    """Lines that were refused may be loaded by a later version, or by hand when the database accepts them."""
    bad = b'{"event_id":"%s","type":5,"data":{}}'
    feed.load(page(0, bad % b"ann@example.com", event(1)))
    feed.personal.erase(ADDRESS)
    assert feed.query("SELECT CAST(raw AS TEXT) FROM outbound_transfer_rejected_lines") == [
        ('{"event_id":"ann@example.com","type":5,"data":{}}',)
    ]


def test_percent_encoded_letters_are_found_in_sql(feed: Feed) -> None:
    feed.load(page(0, event(0, data={"u": "https://x/?to=%61nn%40example.com"})))
    assert feed.personal.erase(ADDRESS) == {"events": 1}


def test_a_wait_goes_on_with_the_transfer_as_the_service_has_it(feed: Feed) -> None:
    """What triggerers share is no record of a person: a wait concludes from it that its transfer is the one it sent."""
    ensure_schema(feed.warehouse, CLUSTER, utc_now())
    sent = Transfer("t1", "complete", "Report", recipients=(Recipient(ADDRESS),))
    key = Key("acme", "digest", "outbound_transfer_default", 60)
    holder, other = PollTables(feed.warehouse, key, "a"), PollTables(feed.warehouse, key, "b")
    for process, waiters, readings in (
        (holder, {}, {}),
        (other, {"t1": SharedWaiter(60, 0)}, {}),
        (holder, {}, {"t1": sent}),
    ):
        process.sync(ProcessState(waiters, readings, True, has_polled=True))
    feed.personal.erase(ADDRESS)
    read = other.sync(ProcessState({"t1": SharedWaiter(60, 0)}, {}, True, has_polled=True)).readings["t1"]
    trigger = TransferTrigger("t1", "conn", 60.0, utc_now().isoformat(), identity=digest(identity_of(sent)))
    waiter = Mock(transfer=read, result={"status": "finished", "transfer": to_builtins(read)})
    assert trigger._checked_result(waiter)["status"] == "finished"
    assert [each["email"] for each in waiter.result["transfer"]["recipients"]] == [ADDRESS]


def test_retention_takes_recipients_of_no_other_account(feed: Feed) -> None:
    old = Transfer("t1", "complete", "s", recipients=(Recipient(ADDRESS),), sent_at="2020-01-01T00:00:00Z")
    new = Transfer("t1", "sent", "s", recipients=(Recipient("bob@example.com"),), sent_at=utc_now().isoformat())
    for account, transfer in (("a", old), ("b", new)):
        tables = TransferTables(feed.warehouse, account, "conn")
        tables.sync_state()
        tables.save([transfer], utc_now())
    feed.personal.delete_before(utc_now() - timedelta(days=365), is_rehearsal=False)
    assert feed.query("SELECT account, email FROM outbound_transfer_recipients ORDER BY account") == [
        ("a", ERASED),
        ("b", "bob@example.com"),
    ]


def test_retention_keeps_what_is_outstanding(feed: Feed) -> None:
    """A transfer that is still out is on the page, and its recipients are those who are still to pick up."""
    sent = utc_now() - timedelta(days=20)
    task = TaskRef("conn", "dag", "deliver", "run", -1, 1)
    update = DeliveryUpdate(
        account="acme", transfer_id="t1", task=task, started_at=format_timestamp(sent), at=format_timestamp(sent),
        status="sent", subject="s", recipient_count=1, recipients=(RecipientPickup(ADDRESS, "", None),),
        sent_at=format_timestamp(sent),
    )  # fmt: skip
    DeliveryTables(feed.warehouse, clock=lambda: sent).save(update)
    tables = TransferTables(feed.warehouse, "acme", "conn")
    tables.sync_state()
    tables.save([Transfer("t1", "sent", "s", recipients=(Recipient(ADDRESS),), sent_at=sent.isoformat())], sent)
    feed.personal.delete_before(utc_now() - timedelta(days=7), is_rehearsal=False)
    assert feed.query("SELECT transfer_id FROM outbound_transfer_deliveries") == [("t1",)]
    assert feed.query("SELECT email FROM outbound_transfer_recipients") == [(ADDRESS,)]
    # A sensor that sees the pickup does not bring the row back.
    sensor = msgspec.structs.replace(task, task_id="wait", owns_delivery=False)
    done = msgspec.structs.replace(update, task=sensor, status="complete", error=msgspec.UNSET)
    DeliveryTables(feed.warehouse).save(done)
    assert feed.query("SELECT status FROM outbound_transfer_deliveries") == [("complete",)]


def test_who_has_approved_does_not_come_back(feed: Feed) -> None:
    now = format_timestamp(utc_now())
    update = DeliveryUpdate(
        account="acme", transfer_id="t1", task=TaskRef("conn", "dag", "deliver", "run", -1, 1), started_at=now, at=now,
        status="sent", subject=f"For {ADDRESS}", recipient_count=1, sent_at=now, approved_by=ADDRESS, approved_at=now,
        files={f"{ADDRESS} a.pdf": {"size": 1, "sha256": "ab"}},
    )  # fmt: skip
    DeliveryTables(feed.warehouse).save(update)
    feed.personal.erase(ADDRESS)
    DeliveryTables(feed.warehouse).save(msgspec.structs.replace(update, status="complete"))
    found = feed.query("SELECT subject, approved_by, files, size_bytes FROM outbound_transfer_deliveries")
    assert ADDRESS not in str(found)
    assert found[0][3] == 1


def test_a_page_that_is_cut_otherwise_is_loaded_soon(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "none")
    data = {"to": ADDRESS, "text": "x" * 300}
    lines = [event(n, data=data, **({"type": 5} if n % 2 else {})) for n in range(1000)]
    feed.load(page(0, *lines, has_more=True))
    feed.maintenance.reset(0)
    began = time.monotonic()
    feed.load(page(0, *lines[:400], has_more=True))
    assert time.monotonic() - began < 5


def test_the_log_of_polls_stays_without_an_address(feed: Feed) -> None:
    """What ends an ingestion quotes what is in the way, each time."""
    line, destination = page(0, event(0)), EventStore(feed.warehouse, "acme")
    destination.load_page = Mock(side_effect=ValueError(f'invalid json: {{"email": "{ADDRESS}"}}'))  # type: ignore[method-assign]
    options: Any = {"address": "acme", "max_pages": 1, "max_rejected": 0, "sleep": Mock()}

    def run() -> None:
        with pytest.raises(ValueError, match="invalid"):
            FeedIngest(lambda _: line, destination, IngestProgress(), **options).run()

    run()
    feed.personal.erase(ADDRESS)
    assert ADDRESS not in str(feed.query("SELECT note FROM outbound_transfer_feed_polls"))
    run()
    assert ADDRESS not in str(feed.query("SELECT note FROM outbound_transfer_feed_polls"))


def test_a_rejected_line_that_is_read_again_is_the_same(feed: Feed) -> None:
    one = page(0, event(0, type=5, data={"text": f"sent to {ADDRESS}", "name": "report.csv"}), event(1))
    feed.load(one)
    feed.personal.erase(ADDRESS)
    feed.maintenance.reset(0)
    feed.load(one)
    feed.check(events=1, rejected=1)


def test_names_of_files_stay(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "none")
    feed.load(page(0, event(0, data={"text": f"sent to {ADDRESS}", "name": "report.csv"})))
    ((data,),) = feed.query("SELECT data FROM outbound_transfer_events")
    assert json.loads(data)["name"] == "report.csv"


def test_a_rejected_event_of_another_is_not_lost(feed: Feed) -> None:
    """Two events of one id, to two people: the second is kept as a rejected line, whatever is erased."""
    first, second = event(0, data={"to": ADDRESS}), event(0, data={"to": "bob@example.com"})
    feed.load(page(0, first, has_more=True), page(1, second))
    assert feed.maintenance.status().rejected == 1
    feed.personal.erase(ADDRESS)
    assert feed.maintenance.replay_rejected_lines() == (0, 1)
    assert "bob@example.com" in str(feed.query("SELECT raw FROM outbound_transfer_rejected_lines"))


def test_a_percent_sign_that_is_escaped_is_seen(feed: Feed) -> None:
    feed.load(page(0, b'{"event_id":"e0","type":"t","data":{"u":"https://x/?to=ann\\u002540example.com"}}'))
    assert feed.personal.erase(ADDRESS) == {"events": 1}


def test_a_phone_may_be_a_number(feed: Feed) -> None:
    feed.load(page(0, event(0, data={"email": ADDRESS, "phone": 491701234567})))
    feed.personal.erase(ADDRESS)
    assert "491701234567" not in str(feed.query("SELECT data FROM outbound_transfer_events"))


def test_what_is_beside_an_address_in_a_url_stays(feed: Feed) -> None:
    feed.load(page(0, event(0, data={"u": "https://x/?q=a%26b&to=ann%40example.com"})))
    feed.personal.erase(ADDRESS)
    assert "q=a%26b" in str(feed.query("SELECT data FROM outbound_transfer_events"))


def test_the_name_of_another_stays(feed: Feed) -> None:
    feed.load(page(0, event(0, data={"email": "bob@example.com", "name": "Bob B.", "sender": ADDRESS})))
    feed.personal.erase(ADDRESS)
    assert "Bob B." in str(feed.query("SELECT data FROM outbound_transfer_events"))


def test_a_process_without_the_key_records_what_becomes_of_a_delivery(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not store the recipients, but a delivery that was sent does not stay in doubt."""
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__PRIVACY_KEY", "secret")
    feed.personal.erase(ADDRESS)
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__PRIVACY_KEY", "")
    now = format_timestamp(utc_now())
    update = DeliveryUpdate(
        account="acme", transfer_id="t1", task=TaskRef("conn", "dag", "deliver", "run", -1, 1), started_at=now, at=now,
        status="in doubt", subject="s", recipient_count=1,
    )  # fmt: skip
    ledger = DeliveryTables(feed.warehouse)
    ledger.save(update)
    sent = msgspec.structs.replace(update, status="pending", recipients=(RecipientPickup("bob@example.com", "", None),))
    with suppress(InvalidPrivacy):  # the writer of the ledger logs it
        ledger.save(sent)
    assert feed.query("SELECT status FROM outbound_transfer_deliveries") == [("pending",)]


def test_addresses_in_other_scripts_are_addresses(feed: Feed) -> None:
    address = "user@उदाहरण.परीक्षा"
    feed.load(page(0, event(0, data={"email": address})))
    assert feed.personal.erase(normalize_address(address)) == {"events": 1}


def test_an_address_that_ends_with_another_is_another(feed: Feed) -> None:
    """RFC 5322, atext: nothing but the whole of it is the mailbox."""
    feed.load(page(0, event(0, data={"email": "m&m@example.com"})))
    assert feed.personal.erase("m@example.com") == {}


@pytest.mark.parametrize("erased", [["ann@x.com", "bob@x.com"], ["bob@x.com"]], ids=["two", "one"])
@pytest.mark.parametrize("mode", ["names", "pseudonyms"])
def test_addresses_as_names_of_fields(
    hook_of: Any, monkeypatch: pytest.MonkeyPatch, mode: str, erased: list[str]
) -> None:
    """JSONB keeps one field of a name, in an order of its own."""
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", mode)
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__PRIVACY_KEY", "secret")
    feed = Feed(hook_of("psycopg"))
    one = page(
        0, *(event(n, data={"dora@x.com": 3, "bob@x.com": n, "ann@x.com": 2, "carl@x.com": 4}) for n in range(9))
    )
    feed.load(one)
    for address in erased if mode == "names" else ():
        feed.personal.erase(address)
    values = feed.query("SELECT data FROM outbound_transfer_events")
    assert all(len(data) == 4 for (data,) in values)
    feed.maintenance.reset(0)
    feed.load(one)
    feed.check(events=9)


def test_retention_keeps_the_newest_page_after_a_replay(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.load(page(0, event(0, type=5), event(1), has_more=True), page(2, event(2), has_more=True), page(3, event(3)))
    monkeypatch.setattr(SqlFeedMaintenance, "_read", lambda *_: Event("e0", "t", None, None, None, 1))
    assert feed.maintenance.replay_rejected_lines() == (1, 0)
    feed.personal.delete_before(utc_now() + timedelta(days=1), is_rehearsal=False)
    assert ("e3",) in feed.query("SELECT event_id FROM outbound_transfer_events")


def test_retention_keeps_what_is_usual_of_a_feed(feed: Feed) -> None:
    """Otherwise the next page's cursor is doubted."""
    feed.load(page(0, event(0), next_cursor=5_000, has_more=True), page(5_000, event(1)))
    before = EventStore(feed.warehouse, "acme").greatest_excess()
    feed.personal.delete_before(utc_now() + timedelta(days=1), is_rehearsal=False)
    assert EventStore(feed.warehouse, "acme").greatest_excess() == before


def test_a_pseudonym_is_found_and_erased(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the key knows the person, who may ask for the rows and for their end."""
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "pseudonyms")
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__PRIVACY_KEY", "secret")
    feed.load(page(0, event(0, data={"to": ADDRESS})))
    assert feed.personal.find(ADDRESS)
    assert feed.personal.erase(ADDRESS) == {"events": 1}


def test_files_of_others_are_no_digests(tmp_path: Path) -> None:
    """Storages and desktops put files of their own into folders."""
    store = local_store(tmp_path / "lake")
    ObjectPersonalData(store).erase(ADDRESS)
    (tmp_path / "lake" / "_feed" / "erased" / ".DS_Store").write_bytes(b"x")
    feed = destination(store)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(0)))


@pytest.mark.parametrize(
    "text", ["@" * 2_000_000, "[" + ",".join(['"a@b.c"'] * 100_000) + "]", ("a" * 318 + ",@b ") * 1_500]
)
def test_a_payload_is_redacted_soon(text: str) -> None:
    began = time.monotonic()
    redact(text, only(ADDRESS))
    assert time.monotonic() - began < 1


def test_a_column_that_others_have_added_stays(tmp_path: Path) -> None:
    """Iceberg's tables evolve, and a page is loaded all the same."""
    lake = open_lake(tmp_path)
    lake.destination().get_or_create_cursor()
    lake.destination().load_page(page(0, event(0, data={"to": ADDRESS})))
    with lake.catalog.load_table(TABLE).update_schema() as update:
        update.add_column("mine", StringType())
    lake.destination().load_page(page(1, event(1, data={"to": ADDRESS})))
    assert IcebergPersonalData(lake.catalog, TABLE).erase(ADDRESS) == {"events": 2}
    assert "mine" in lake.catalog.load_table(TABLE).scan().to_arrow().column_names


def test_a_pickup_that_is_stored_stays_when_recipients_are_stored_otherwise(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, task = format_timestamp(utc_now()), TaskRef("conn", "dag", "deliver", "run", -1, 1)
    update = DeliveryUpdate(
        account="acme", transfer_id="t1", task=task, started_at=now, at=now, status="pending", subject="s",
        recipient_count=1, recipients=(RecipientPickup(ADDRESS, "", now),), picked_up_count=1,
    )  # fmt: skip
    DeliveryTables(feed.warehouse).save(update)
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "pseudonyms")
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__PRIVACY_KEY", "secret")
    stale = msgspec.structs.replace(update, recipients=(RecipientPickup(ADDRESS, "", None),), picked_up_count=0)
    DeliveryTables(feed.warehouse).save(stale)
    ((recipients,),) = feed.query("SELECT recipients FROM outbound_transfer_delivery_recipients")
    assert [each["picked_up_at"] for each in json.loads(recipients)] == [now]


def test_a_send_that_needs_approval_needs_no_key(
    connection: str, sandbox: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in what is stored of people stops no send: without an approval, it does not."""
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "pseudonyms")
    (tmp_path / "a.csv").write_text("a")
    given = {"subject": "s", "recipients": [ADDRESS], "files": str(tmp_path / "a.csv"), "require_approval": True}
    task = FakeTaskInstance(
        lambda: DeliverFilesOperator(task_id="task", **given),
        SimulatedClock(sandbox),
        0,
        task_id="task",
        person=Person(Person.approves),
    )
    task.run()
    assert "example" not in task.person.shown[0].body


def test_the_log_of_a_reset_feed_counts_no_event_twice(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """More false conflicts than ``max_rejected`` allows, and the feed stands still."""
    one = page(0, *(event(n, data={"text": f"sent to {ADDRESS}", "name": "report.csv"}) for n in range(101)))
    feed.load(one)
    feed.personal.erase(ADDRESS)
    feed.maintenance.reset(0)
    options: Any = {"address": "acme", "max_pages": 1, "max_rejected": 100, "sleep": Mock()}
    FeedIngest(lambda _: one, EventStore(feed.warehouse, "acme"), IngestProgress(), **options).run()
    feed.check(events=101)
