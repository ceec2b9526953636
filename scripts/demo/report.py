"""What came of it, read back from the warehouse, the sandbox, Airflow and the disk, and whether all of it agrees."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter, size
from support.airflow_stack.stack import Airflow

from .scenario import Delivery, Observations

#: What a reader may wonder about, by method and status.
REMARKS = {("DELETE", 409): " (the teardown discards drafts only; what was sent stays)", ("GET", 429): " (waited for)"}

#: Size and SHA-256 by file name.
Contents = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Outcome:
    """A delivery, from every side."""

    subject: str
    emails: list[str]
    transfer_id: str
    on_disk: Contents
    stored: Contents
    transfer: dict[str, Any]
    """The final transfer, as the sensor saw it."""
    statuses: list[str]
    """After each pickup."""
    deferred: bool


@dataclass(frozen=True)
class Facts:
    """Everything that the report says and checks."""

    outcomes: list[Outcome]
    ledger: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    events: list[dict[str, Any]]
    """Rows of the warehouse: `event_id`, `type`, `occurred_at`, and `data` as a mapping."""
    cursor: int | None
    rejected: int
    import_errors: list[str]


def gather(
    deliveries: list[Delivery], seen: Observations, run_id: str, sandbox: Sandbox, airflow: Airflow, warehouse: Path
) -> Facts:
    """Read everything back."""
    calls = sandbox.requests()
    outcomes = []
    for index, delivery in enumerate(deliveries):
        transfer_id = seen.transfers.get(index, "")
        transfer = airflow.xcom("deliver_files", run_id, "delivery.wait_for_pickup", index)
        stored = _stored(sandbox, transfer_id)
        on_disk, statuses = delivery.contents(), seen.statuses.get(index, [])
        outcomes.append(
            Outcome(
                *(delivery.subject, delivery.emails, transfer_id, on_disk, stored, transfer, statuses),
                deferred=index in seen.deferred,
            )
        )
    return Facts(outcomes, sandbox.ledger(), calls, *read_warehouse(warehouse), airflow.import_errors())


def _stored(sandbox: Sandbox, transfer_id: str) -> Contents:
    """What the service has of a transfer: which files it lists, and what is really on its disk."""
    url, key = f"{sandbox.base_url}/v1/transfers/{transfer_id}/files", sandbox.transfer_api_key
    answer = httpx.get(url, headers={"Authorization": f"Bearer {key}"}, trust_env=False).raise_for_status().json()
    files = [sandbox.stored_file(transfer_id, file["id"]) for file in answer["data"]]
    return {file["name"]: (file["stored_size"], file["sha256"]) for file in files}


def read_warehouse(path: Path) -> tuple[list[dict[str, Any]], int | None, int]:
    """Events, cursor, and number of rejected lines."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(
            "SELECT event_id, type, occurred_at, data FROM outbound_transfer_events ORDER BY CAST(event_id AS INTEGER)"
        )
        events = [{**row, "data": json.loads(row["data"])} for row in map(dict, rows)]
        cursor = connection.execute("SELECT cursor FROM outbound_transfer_feed_cursor").fetchone()
        (rejected,) = connection.execute("SELECT count(*) FROM outbound_transfer_rejected_lines").fetchone()
    return events, cursor and int(cursor[0]), int(rejected)


def checks(facts: Facts) -> Iterator[tuple[str, bool]]:
    """Every claim of the demo, and whether it is so."""
    for outcome in facts.outcomes:
        for claim, is_so in _checks_of(outcome, facts):
            yield f'"{outcome.subject}": {claim}', is_so
    transfers = {outcome.transfer_id for outcome in facts.outcomes}
    yield "nothing else was billed or emailed", transfers == {row["transfer_id"] for row in facts.ledger}
    known = sum(len(_events(facts, outcome)) for outcome in facts.outcomes)
    yield "the warehouse holds these events and no other", len(facts.events) == known and facts.rejected == 0
    ids = [event["event_id"] for event in facts.events]
    yield "every event landed once", len(set(ids)) == len(ids)
    yield "the cursor stands at the last event", bool(ids) and facts.cursor == max(map(int, ids))
    yield "Airflow imported everything, once", not facts.import_errors


def _checks_of(outcome: Outcome, facts: Facts) -> Iterator[tuple[str, bool]]:
    ledger = [row for row in facts.ledger if row["transfer_id"] == outcome.transfer_id]
    emailed = sorted(row["recipient"] for row in ledger if row["kind"] == "emailed")
    collected = sorted(person["email"] for person in outcome.transfer["recipients"] if person["picked_up_at"])
    recipients = sorted(outcome.emails)
    yield (
        "the service holds the very bytes that are on disk",
        bool(outcome.stored) and outcome.stored == outcome.on_disk,
    )
    yield "billed exactly once", [row["kind"] for row in ledger].count("billed") == 1
    yield "every recipient was emailed once", emailed == recipients
    yield "its sensor waited deferred, without a worker slot", outcome.deferred
    yield "partial until the last recipient, then complete", outcome.statuses == _expected_statuses(recipients)
    yield "the sensor saw every recipient collect", (outcome.transfer["status"], collected) == ("complete", recipients)
    yield "one transfer_sent event in the warehouse", len(_events(facts, outcome, "transfer_sent")) == 1
    downloads = Counter(
        (event["data"]["recipient"], event["data"]["file_name"]) for event in _events(facts, outcome, "file_downloaded")
    )
    wanted = Counter((email, name) for email in outcome.emails for name in outcome.on_disk)
    yield "one file_downloaded event for each recipient and file", downloads == wanted


def _expected_statuses(recipients: list[str]) -> list[str]:
    return ["partial"] * (len(recipients) - 1) + ["complete"]


def _events(facts: Facts, outcome: Outcome, type_: str | None = None) -> list[dict[str, Any]]:
    return [
        event
        for event in facts.events
        if event["data"].get("transfer_id") == outcome.transfer_id and type_ in (None, event["type"])
    ]


def print_report(facts: Facts, reporter: Reporter) -> list[str]:
    """Print the report; the claims that are not so."""
    reporter.heading("What was delivered")
    for outcome in facts.outcomes:
        _print_outcome(outcome, reporter)
    _print_warehouse(facts, reporter)
    _print_calls(facts, reporter)
    reporter.heading("Verified")
    wrong = []
    for claim, is_so in checks(facts):
        reporter.line(f"  {'ok   ' if is_so else 'WRONG'} {claim}", "" if is_so else "bold red")
        if not is_so:
            wrong.append(claim)
    return wrong


def _print_outcome(outcome: Outcome, reporter: Reporter) -> None:
    reporter.line(f'"{outcome.subject}", transfer {outcome.transfer_id}, sent {outcome.transfer["sent_at"]}', "bold")
    for name, (count, sha256) in sorted(outcome.stored.items()):
        reporter.line(f"  {size(count):>9}  sha256 {sha256[:12]}...  {name}")
    for person in outcome.transfer["recipients"]:
        reporter.line(f"  collected {person['picked_up_at']} by {person['name']} <{person['email']}>")


def _print_warehouse(facts: Facts, reporter: Reporter) -> None:
    reporter.heading("What landed in the warehouse")
    for type_, count in Counter(event["type"] for event in facts.events).items():
        times = [event["occurred_at"] for event in facts.events if event["type"] == type_]
        reporter.line(f"  {count:3} {type_}, {min(times)} to {max(times)}")
    reporter.line(f"  cursor {facts.cursor}, rejected lines {facts.rejected}")


def _print_calls(facts: Facts, reporter: Reporter) -> None:
    reporter.heading("Calls of the service")
    paths = Counter(
        (call["method"], re.sub(r"(/transfers/)[^/]+", r"\1{id}", call["path"]), call["status"]) for call in facts.calls
    )
    for (method, path, status), count in sorted(paths.items(), key=lambda item: item[0][1::-1]):
        reporter.line(f"  {count:3} x {method} {path} -> {status}{REMARKS.get((method, status), '')}")
    reporter.line(f"  {len(facts.calls):3} in all")
