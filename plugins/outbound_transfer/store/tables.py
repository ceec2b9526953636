"""The tables, and their names in a database. Their comments are in its catalog, too, and in docs/tables.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Column, Computed, Index, MetaData, Table
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.types import TypeEngine

from outbound_transfer.client.events import MAX_EVENT_ID_BYTES
from outbound_transfer.client.models import DRAFT
from outbound_transfer.store.config import DEFAULT_PREFIX, check_prefix, check_schema, find_connection, sql_hook
from outbound_transfer.store.destination import MAX_ACCOUNT_LENGTH, check_address
from outbound_transfer.store.engine import Database, HookLike
from outbound_transfer.store.insert import insert_new
from outbound_transfer.store.rows import ASKED, FAILED, IN_DOUBT, NO_DRAFT, REHEARSED, WAITS_FOR_APPROVAL, utc_now
from outbound_transfer.store.types import BYTES, FLAG, JSON, WHOLE, Text, Time

TEXT: Final = Text()
TIME: Final = Time()

#: Bytes of a table's name; the database would shorten a longer one silently.
_MAX_NAME: Final = {"postgresql": 63, "mysql": 64, "sqlite": 1_000, "duckdb": 1_000}

#: End of the comments of columns with personal data.
PERSONAL_DATA: Final = "Personal data"

_METADATA: Final = MetaData()


def _column(
    name: str, type_: TypeEngine[Any], comment: str, *, key: bool = False, null: bool = False, **more: Any
) -> Column[Any]:
    # Some names are reserved words in some databases, so all of them are quoted.
    return Column(name, type_, comment=comment, primary_key=key, nullable=null, autoincrement=False, quote=True, **more)


def _personal(name: str, type_: TypeEngine[Any], comment: str, *, null: bool = False) -> Column[Any]:
    return _column(name, type_, f"{comment}. {PERSONAL_DATA}", null=null, info={"personal": True})


def _account(comment: str = "the account", *, key: bool = True) -> Column[Any]:
    return _column("account", Text(MAX_ACCOUNT_LENGTH), comment, key=key)


EVENTS: Final = Table(
    "events",
    _METADATA,
    _account("the account whose feed it is: its site address. An `event_id` is unique within one account only"),
    _column("event_id", Text(MAX_EVENT_ID_BYTES), "as received", key=True),
    _column("type", TEXT, "`transfer_sent`, `file_downloaded` or any other type"),
    _column("timestamp", TEXT, "as received; NULL if the event has none", null=True),
    _column(
        "occurred_at",
        TIME,
        "`timestamp` in UTC; NULL if it is not an ISO 8601 date and time, or lies in the year 1 or 9999. A time "
        "without a zone is taken as UTC; a number is not interpreted",
        null=True,
    ),
    _personal("data", JSON, "the payload; NULL if the event has none or `raw` contains it", null=True),
    _personal("extra_fields", JSON, "undocumented fields of the event as one JSON object", null=True),
    _personal(
        "raw",
        TEXT,
        "the whole line as received, if a JSON column would reject or change it (a NUL, an unpaired surrogate, a "
        "repeated name, an extreme number); `(erased)` and a digest if the payload was erased; otherwise NULL",
        null=True,
    ),
    _column("cursor_from", WHOLE, "the cursor of the request that returned the page"),
    _column("line_number", WHOLE, "the line within that page, from 1"),
    _column("loaded_at", TIME, "when the page was first loaded"),
    Index("events_1", "account", "cursor_from"),
    comment="One row for each event (service-api.md, R46).",
)

FEED_CURSOR: Final = Table(
    "feed_cursor",
    _METADATA,
    _account(),
    _column("cursor", WHOLE, "the position to request next"),
    _column("updated_at", TIME, "when the cursor last moved"),
    comment="Where reading of each account's feed continues (service-api.md, R43).",
)

REJECTED_LINES: Final = Table(
    "rejected_lines",
    _METADATA,
    _account(),
    _column("line_digest", Text(64), "the SHA-256 of the line as it was received", key=True),
    _column("cursor_from", WHOLE, "the cursor of the request that returned the page"),
    _column("line_number", WHOLE, "the line within that page, from 1"),
    _personal("raw", BYTES, "the line's bytes"),
    _personal("reason", TEXT, "why the line was rejected"),
    _column("loaded_at", TIME, "when the page was first loaded"),
    comment="Lines that are not valid events, or that the database cannot store otherwise; equals are stored once.",
)

FEED_POLLS: Final = Table(
    "feed_polls",
    _METADATA,
    _column("poll_id", Text(32), "an opaque unique id", key=True),
    _account(key=False),
    _column("polled_at", TIME, "when the response arrived"),
    _column("action", TEXT, "`poll`; or `reset`, `rebuild`: a command changed the cursor"),
    _column("status", WHOLE, "HTTP status; NULL without a response and for commands", null=True),
    _column("events", WHOLE, "events in the page; 0 if nothing was loaded"),
    _column("new_events", WHOLE, "events that were not in the table before"),
    _column("rejected", WHOLE, "rejected lines of the page"),
    _column("cursor_from", WHOLE, "the cursor before"),
    _column("cursor_to", WHOLE, "the cursor after; NULL if nothing was loaded", null=True),
    _column("has_more", FLAG, "whether the feed had more; NULL if it did not say", null=True),
    _personal("note", TEXT, "what failed, or who ran the command", null=True),
    Index("feed_polls_1", "account", "polled_at"),
    comment="One row for each request to the feed and each maintenance command: the client's counterpart of the "
    "service's feed usage log.",
)

TRANSFERS: Final = Table(
    "transfers",
    _METADATA,
    _account(),
    _column("transfer_id", Text(MAX_EVENT_ID_BYTES), "the transfer", key=True),
    _column("conn_id", TEXT, "the Airflow connection whose key listed it. A key sees its own user's transfers only"),
    _column("status", TEXT, "the last known status, or `deleted` if the service no longer has the transfer"),
    _personal("subject", TEXT, "as sent"),
    _column("sent_at", TIME, "when it was sent", null=True),
    _column("expires_at", TIME, "when pickup ends", null=True),
    _column("recipient_count", WHOLE, "number of recipients"),
    _column("picked_up_count", WHOLE, "recipients who have picked up"),
    _column("first_seen_at", TIME, "when a list first contained it"),
    _column("seen_at", TIME, "when a list last contained it"),
    comment="Sent transfers as the service lists them (service-api.md, R11).",
)

RECIPIENTS: Final = Table(
    "recipients",
    _METADATA,
    _account(),
    _column("transfer_id", Text(MAX_EVENT_ID_BYTES), "the transfer", key=True),
    _column("position", WHOLE, "the position within the transfer, from 1; an address may occur twice", key=True),
    _personal("email", TEXT, "address; empty if the option `recipients` is `none`"),
    _personal("name", TEXT, "name"),
    _column("picked_up_at", TIME, "when this recipient downloaded; NULL until then", null=True),
    comment="The recipients of these transfers.",
)

TRANSFER_SYNC: Final = Table(
    "transfer_sync",
    _METADATA,
    _account(),
    _column("conn_id", Text(MAX_ACCOUNT_LENGTH), "the Airflow connection whose key listed the transfers", key=True),
    _column("synced_until", TIME, "every transfer of the key's user that was sent up to this time is in `transfers`"),
    _column("updated_at", TIME, "when this row was last written"),
    comment="The time up to which the list of transfers has been read completely. A failed run leaves it unchanged.",
)

ACCOUNTS: Final = Table(
    "accounts",
    _METADATA,
    _account("the operators' `account`: by default the site address"),
    _column("address", TEXT, "the site address that the name was first used with"),
    _column("bound_at", TIME, "when that was"),
    comment="The site address behind each account name. A connection that leads to another address is refused.",
)

#: Tables that are created together.
FEED: Final = (EVENTS, FEED_CURSOR, REJECTED_LINES, FEED_POLLS)
LISTING: Final = (TRANSFERS, RECIPIENTS, TRANSFER_SYNC)
GROUPS: Final = {"accounts": (ACCOUNTS,), "feed": FEED, "transfers": LISTING}

TABLES: Final = tuple(_METADATA.tables.values())

_IF_UNSENT: Final = f"CASE WHEN status IN ('', '{DRAFT}') THEN '{{}}' ELSE status END"

#: What the page shows as a delivery's status, in SQL.
_SHOWN_STATUS: Final = (
    f"CASE WHEN phase = 'sending' THEN {_IF_UNSENT.format(IN_DOUBT)}"
    f" WHEN phase = '{ASKED}' THEN {_IF_UNSENT.format(WAITS_FOR_APPROVAL)}"
    f" WHEN transfer_id <> '' THEN {_IF_UNSENT.format(DRAFT)}"
    f" WHEN is_rehearsal THEN '{REHEARSED}' WHEN error <> '' THEN '{FAILED}' ELSE '{NO_DRAFT}' END"
)

DELIVERIES: Final = Table(
    "deliveries",
    MetaData(),
    _column("delivery", Text(64), "digest of the task instance or the delivery key", key=True),
    _column("version", WHOLE, "raised by each write of a delivery"),
    _column("is_keyed", FLAG, "whether a delivery key identifies it"),
    _column("account", Text(255), "where the draft was made: the site address; empty if there is none"),
    _column("transfer_id", Text(255), "the draft or the sent transfer; empty if there is none"),
    _column("phase", Text(16), "empty, draft, handed_on, asked, sending (or sent) or discarding"),
    _column("is_rehearsal", FLAG, "whether the draft is never sent, as its connection rehearses"),
    _column("security", Text(16), "how recipients authenticate; empty for the account's default"),
    _column("twin", Text(64), "the same in tasks of a run that deliver the same"),
    _column("run_started", Text(40), "start of the run that has claimed it last"),
    _personal("memory", TEXT, "what tasks remember, as JSON: digests, and each file's name and size"),
    _column("dag_id", Text(250), "of the task instance that has claimed it last; empty if nothing is shown"),
    _column("run_id", Text(250), "its run"),
    _column("task_id", Text(250), "its task id"),
    _column("map_index", WHOLE, "its map index; -1 if the task is not mapped"),
    _column("try_number", WHOLE, "its try number"),
    _column("conn_id", Text(250), "the Airflow connection"),
    _column("status", Text(40), "the last status that a task, a wait or a listing has seen"),
    _personal("subject", TEXT, "as sent"),
    _column("recipient_count", WHOLE, "number of recipients"),
    _column("picked_up_count", WHOLE, "recipients who had picked up by then"),
    _column("sent_at", TIME, "when it was sent", null=True),
    _column("expires_at", TIME, "when pickup ends", null=True),
    _personal("recipients", TEXT, "email, name and picked_up_at of each, as JSON"),
    _personal("error", TEXT, "what ended the last attempt, on one line; empty if nothing did"),
    _column("created_at", TIME, "when its draft was made; before that, when a task claimed it"),
    _column("day", Text(10), "the same as a day in UTC, for example 2026-01-31"),
    _column("updated_at", TIME, "when a delivery wrote it last"),
    _column(
        "shown_status", Text(40), "the status on the page", null=True, server_default=Computed(_SHOWN_STATUS, True)
    ),
    Index("deliveries_transfer", "transfer_id"),
    Index("deliveries_twin", "twin"),
    Index("deliveries_created", "created_at"),
    Index("deliveries_day", "day", "dag_id", "shown_status"),  # the page counts without reading any row
    comment="Deliveries, one row each: what their tasks remember, and what the page shows.",
)


def with_names(table: Table, prefix: str, schema: str | None = None) -> Table:
    """Return a copy of a table with the names that it and its indexes have in a database."""
    metadata = MetaData(schema=quoted_name(schema, quote=True) if schema else None)
    named = table.to_metadata(metadata, name=quoted_name(prefix + table.name, quote=True))
    for index in named.indexes:
        index.name = quoted_name(f"{prefix}{index.name}", quote=True)
    return named


class Tables:
    """The tables of one prefix and schema in the database of a hook.

    :param schema: existing schema of the tables; default: the connection's own.
    :param timeout: seconds to wait for other sessions; default: those of the database.
    :raises UnsupportedDatabase: events and transfers are not stored there.
    :raises InvalidName: the database cannot use the names unchanged.
    """

    def __init__(
        self, hook: HookLike, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None, timeout: float | None = None
    ) -> None:
        self.database = Database(hook, "events or transfers", timeout=timeout)
        self.prefix, self.schema = prefix, schema or None
        check_prefix(prefix, _MAX_NAME[self.database.name])
        check_schema(schema, _MAX_NAME[self.database.name])
        self._named = {table.name: with_names(table, prefix, self.schema) for table in TABLES}
        if self.database.name == "duckdb":  # it scans columns faster than it keeps an index
            for named in self._named.values():
                named.indexes.clear()

    def named(self, table: sa.Table) -> sa.Table:
        """Return a table of :data:`TABLES` with its names here."""
        return self._named[table.name]

    def exist(self, tables: Iterable[sa.Table]) -> bool:
        """Return whether all of these tables are there."""
        with self.database.begin(reads_only=True) as tx:
            there = sa.inspect(tx)
            return all(there.has_table(self.named(each).name, self.schema) for each in tables)

    def create(self, tables: Iterable[sa.Table]) -> None:
        """Create the tables that do not exist; see :meth:`.Database.create_tables`."""
        self.database.create_tables([self.named(each) for each in tables])

    def bind_account(self, account: str, address: str) -> None:
        """Bind an account's name to a site address; ``OtherAccount``: it is bound to another one."""
        self.create([ACCOUNTS])
        accounts = self.named(ACCOUNTS)

        def bind() -> str | None:
            with self.database.begin() as tx:
                insert_new(tx, accounts, [{"account": account, "address": address, "bound_at": utc_now()}])
                return tx.scalar(sa.select(accounts.c.address).where(accounts.c.account == account))

        remedy = f"delete its row in the table {accounts.name}"
        check_address(account, self.database.retry(bind), address, remedy)

    def read_address(self, account: str) -> str | None:
        """Return the site address that an account's name is bound to; None if it is not bound."""
        accounts = self.named(ACCOUNTS)
        with self.database.begin(reads_only=True) as tx:
            there = sa.inspect(tx).has_table(accounts.name, self.schema)
            query = sa.select(accounts.c.address).where(accounts.c.account == account)
            return tx.scalar(query) if there else None


def open_tables(sql_conn_id: str, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> Tables:
    """Return the tables in the database of a connection, without connecting; ``NotASqlConnection``: it has none."""
    return Tables(sql_hook(find_connection(sql_conn_id)), prefix=prefix, schema=schema)
