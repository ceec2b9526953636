"""The dbt package (include/dbt), installed into an analyst's project, with real dbt on tables of the provider."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from views import VIEWS

from e2e.dbt.project import PACKAGE, Outcome, Project
from outbound_transfer.client.events import Event, Page, RejectedLine
from outbound_transfer.store.events import EventStore, PollRecord
from outbound_transfer.store.rows import read_event_time
from outbound_transfer.store.tables import RECIPIENTS, TRANSFERS, Tables
from outbound_transfer.store.views import render_views
from support import sample_rows
from support.databases import fresh_database
from support.postgres import Database
from support.warehouses import Hook, duckdb_hook

pytestmark = pytest.mark.e2e

MODELS = {file.stem for file in (PACKAGE / "models").rglob("*.sql")}
EVENTS = "outbound_transfer_events"

#: A lake's one table of events and rejected lines: no keys, and JSON is text.
LAKE = """
CREATE SCHEMA lake;
CREATE TABLE lake.events AS
SELECT * REPLACE (data::text AS data, extra_fields::text AS extra_fields),
    NULL::text AS rejected_reason, NULL::blob AS rejected_line
FROM outbound_transfer_events;
INSERT INTO lake.events BY NAME
SELECT account, cursor_from, line_number, reason AS rejected_reason, raw AS rejected_line, loaded_at
FROM outbound_transfer_rejected_lines
"""

#: Profiles of databases that are not here. Nothing connects to them.
ABSENT = {
    "bigquery": {"method": "oauth-secrets", "token": "none", "project": "project"},
    "databricks": {"host": "localhost", "http_path": "/none", "token": "none", "catalog": "main"},
    "redshift": {"host": "localhost", "port": 1, "user": "ann", "password": "none", "dbname": "main"},
    "snowflake": {"account": "none", "user": "ann", "password": "none", "database": "lakehouse", "warehouse": "none"},
}


@dataclass(frozen=True)
class Built:
    """A warehouse with the package's views, in which an analyst has built the package."""

    hook: Hook
    project: Project
    build: Outcome
    freshness: Outcome
    docs: Outcome


@contextmanager
def warehouse_of(name: str, server: Database, folder: Path) -> Iterator[tuple[Hook, dict[str, Any], str]]:
    """A hook, dbt's target for it, and the schema of the tables."""
    if name == "duckdb":
        file = folder / "warehouse.duckdb"
        yield duckdb_hook(file), {"type": "duckdb", "path": str(file), "schema": "analytics"}, "main"
        return
    with fresh_database(server) as database:
        login = {"host": database.host, "port": 5432, "user": "postgres", "password": "", "dbname": database.name}
        yield Hook("postgresql", database.connect), {"type": "postgres", "schema": "analytics", **login}, "public"


def fill_listing(warehouse: Tables, count: int, now: datetime) -> None:
    """Add the transfers and recipients of ``count`` deliveries, as a listing has them, and a feed."""
    sample_rows.make_tables(warehouse)
    made = [row for row in sample_rows.deliveries(random.Random(7), count, now, 30, ("dag",), ()) if row["sent_at"]]
    seen = now - timedelta(minutes=1)
    counts = ("recipient_count", "picked_up_count")
    transfers = [
        (sample_rows.ACCOUNT, row["transfer_id"], sample_rows.CONN_ID, row["status"], "Report", row["sent_at"],
         row["expires_at"], *(row[name] for name in counts), seen, seen)
        for row in made
    ]  # fmt: skip
    recipients = [
        (
            sample_rows.ACCOUNT,
            row["transfer_id"],
            at,
            each["email"],
            each["name"],
            read_event_time(each["picked_up_at"]),
        )
        for row in made
        for at, each in enumerate(json.loads(row["recipients"]), 1)
    ]
    sample_rows.insert(warehouse, TRANSFERS, transfers)
    sample_rows.insert(warehouse, RECIPIENTS, recipients)
    sample_rows.add_feed(warehouse, now)


def fill(hook: Hook, count: int = 200) -> None:
    """Tables with so many deliveries and three feeds: one that goes well, one that fails now, one without any page."""
    now = datetime.now(UTC)
    warehouse = Tables(hook)
    fill_listing(warehouse, count, now)

    def feed(account: str, ago: float) -> EventStore:
        store = EventStore(warehouse, account, clock=lambda: now - timedelta(seconds=ago))
        store.get_or_create_cursor()
        return store

    def event(number: int, timestamp: datetime | None) -> Event:
        text = timestamp.isoformat() if timestamp else None
        type_ = "file_downloaded" if number % 3 else "transfer_sent"
        return Event(f"e{number}", type_, text, '{"n": 1}', None, number)

    going_well = feed(sample_rows.ACCOUNT, 30)
    cursor = going_well.read_cursor()
    events = tuple(event(number, now - timedelta(seconds=60 - number)) for number in range(1, 40))
    rejected = (RejectedLine(40, b"{", "no JSON"),)
    going_well.load_page(Page(cursor, cursor + 40, True, events, rejected, b"{}\n" * 39 + b"{\n"))
    feed("failing.example.com", 300).load_page(Page(0, 1, False, (event(1, None),), ()))
    feed("failing.example.com", 0).log_poll(PollRecord(cursor_from=1, status=429))
    feed("new.example.com", 0)


def run_all(hook: Hook, statements: str) -> None:
    for statement in statements.split(";\n"):
        hook.run(statement)


def without_key(hook: Hook) -> None:
    """Make the table of events one that has no key, with an event that was loaded again a second later."""
    later = "loaded_at + INTERVAL '1 second'"
    columns = "account, event_id, type, timestamp, occurred_at, data, extra_fields, raw, cursor_from, line_number"
    run_all(
        hook,
        f"CREATE TABLE keyless AS SELECT * FROM {EVENTS};\nDROP TABLE {EVENTS};\n"
        f"ALTER TABLE keyless RENAME TO {EVENTS};\n"
        f"INSERT INTO {EVENTS} SELECT {columns}, {later} FROM {EVENTS} WHERE account LIKE 'failing%'",
    )


@pytest.fixture(scope="module", params=["duckdb", "postgresql"])
def built(
    request: pytest.FixtureRequest, postgres_server: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp("dbt")
    with warehouse_of(request.param, postgres_server, folder) as (hook, target, schema):
        fill(hook)
        without_key(hook)
        run_all(hook, render_views(hook.dialect_name).rstrip().removesuffix(";"))
        project = Project(folder, target, {"outbound_transfer_schema": schema})
        _, *outcomes = project.run("deps", "build", "source freshness", "docs generate --static")
        yield Built(hook, project, *outcomes)


def test_every_model_is_built_and_every_test_passes(built: Built) -> None:
    assert built.build.success, built.build.error
    assert built.build.named("success") == MODELS
    assert "the_first_of_two_equal_events_counts" in built.build.named("pass")
    assert set(built.build.statuses.values()) == {"success", "pass"}


def test_the_sources_are_fresh(built: Built) -> None:
    assert built.freshness.named("pass") == {"events", "feed_polls"}


@pytest.mark.parametrize(("mart", "view"), VIEWS.items())
def test_a_mart_equals_its_view_row_by_row(built: Built, mart: str, view: str) -> None:
    # One statement, so that both have the same current time.
    mart = f"analytics.{mart}"
    ((count,),) = built.hook.fetch(f"SELECT count(*) FROM {mart}")
    assert count
    if mart.endswith("events_by_day"):  # a view counts the event that is there twice as two
        mart, view = (f"{table} WHERE account NOT LIKE 'failing%'" for table in (mart, view))
    difference = f"(SELECT * FROM {view} EXCEPT ALL SELECT * FROM {mart})"
    assert built.hook.fetch(f"{difference} UNION ALL (SELECT * FROM {mart} EXCEPT ALL SELECT * FROM {view})") == []


def test_an_event_that_a_table_without_a_key_has_twice_is_counted_once(built: Built) -> None:
    ((loaded,),) = built.hook.fetch(f"SELECT count(*) FROM {EVENTS}")
    rows = built.hook.fetch("SELECT account, event_id FROM analytics.stg_outbound_transfer__events")
    assert len(rows) == loaded - 1 == 40
    assert len(set(rows)) == 40
    ((is_first,),) = built.hook.fetch(
        "SELECT loaded_at = (SELECT min(e.loaded_at) FROM outbound_transfer_events AS e WHERE e.account = s.account)"
        " FROM analytics.stg_outbound_transfer__events AS s WHERE account LIKE 'failing%'"
    )
    assert is_first


def test_feeds_in_each_state_have_their_row(built: Built) -> None:
    rows = built.hook.fetch(
        "SELECT account, caught_up, failed_polls_since, rejected_lines, seconds_to_load IS NULL"
        " FROM analytics.outbound_transfer__feed_health ORDER BY account"
    )
    assert rows == [
        (sample_rows.ACCOUNT, 0, 0, 2, False),
        ("failing.example.com", 1, 1, 0, True),
        ("new.example.com", None, 0, 0, True),
    ]


def test_every_column_is_documented(built: Built) -> None:
    assert built.docs.success, built.docs.error
    assert (built.project.folder / "target/static_index.html").stat().st_size > 1_000_000
    manifest, catalog = built.project.artifact("manifest"), built.project.artifact("catalog")
    described = {name: node["columns"] for name, node in (manifest["nodes"] | manifest["sources"]).items()}
    found = catalog["nodes"] | catalog["sources"]
    assert len(found) == len(MODELS) + len(manifest["sources"])
    undocumented = {
        f"{name}.{column}"
        for name, node in found.items()
        for column in node["columns"]
        if not described[name].get(column, {}).get("description")
    }
    assert undocumented == set()


def test_a_pickup_before_the_send_fails_a_test(built: Built) -> None:
    built.hook.run("UPDATE outbound_transfer_recipients SET picked_up_at = '2001-01-01T00:00:00Z' WHERE position = 1")
    (again,) = built.project.run("build --select outbound_transfer__time_to_pickup")
    assert not again.success
    assert again.named("fail") == {"nobody_picks_up_before_the_send"}


def test_a_lake_has_events_and_rejected_lines_in_one_table(tmp_path: Path) -> None:
    file = tmp_path / "warehouse.duckdb"
    hook = duckdb_hook(file)
    fill(hook)
    run_all(hook, f"{LAKE};\nINSERT INTO lake.events SELECT * FROM lake.events;\n{lakes_only()}")
    switches = {"outbound_transfer_lake": True, "using_transfers": False}
    switches |= {"outbound_transfer_events_warn_after": 0}
    names = {"outbound_transfer_schema": "lake", "outbound_transfer_table_prefix": ""}
    project = Project(tmp_path, {"type": "duckdb", "path": str(file), "schema": "analytics"}, switches | names)
    _, build, freshness = project.run("deps", "build", "source freshness")
    assert build.success, build.error
    assert build.named("success") == {
        *("stg_outbound_transfer__events", "stg_outbound_transfer__rejected_lines", "outbound_transfer__feed_health"),
        "outbound_transfer__events_by_day",
    }
    assert freshness.named("warn") == {"events"}
    assert hook.fetch("SELECT count(*), count(DISTINCT event_id) FROM analytics.stg_outbound_transfer__events") == [
        (40, 39)
    ]
    lines = "SELECT raw, reason FROM analytics.stg_outbound_transfer__rejected_lines ORDER BY loaded_at"
    assert hook.fetch(lines) == [(b"{", "no JSON"), (b"{", "no JSON")]
    health = "SELECT account, cursor, rejected_lines FROM analytics.outbound_transfer__feed_health ORDER BY account"
    assert hook.fetch(health) == [(sample_rows.ACCOUNT, None, 2), ("failing.example.com", None, 0)]


def lakes_only() -> str:
    """Return statements that remove the tables that a lake does not have."""
    return ";\n".join(f"DROP TABLE outbound_transfer_{name}" for name in ("events", "feed_polls", "transfers"))


@pytest.fixture(scope="module")
def compiled_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Project]:
    """Compile the package for a database to which there is no connection."""

    @cache
    def compiled(name: str) -> Project:
        project = Project(tmp_path_factory.mktemp(name), {"type": name, "schema": "analytics", **ABSENT[name]})
        _, outcome = project.run("deps", "compile --no-introspect --no-populate-cache")
        assert outcome.success, outcome.error
        return project

    return compiled


@pytest.mark.parametrize("name", ABSENT)
def test_the_models_compile_into_a_databases_sql(compiled_for: Callable[[str], Project], name: str) -> None:
    project = compiled_for(name)
    nodes = project.artifact("manifest")["nodes"]
    columns = {model: [*nodes[f"model.outbound_transfer.{model}"]["columns"]] for model in MODELS}
    models = project.compiled()
    assert {model: sqlglot.parse_one(models[model], dialect=name).named_selects for model in MODELS} == columns
