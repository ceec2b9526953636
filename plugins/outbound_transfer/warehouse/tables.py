"""The tables, as data: one description each, spelled for each database by :mod:`.dialects`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from outbound_transfer.protocol.feed import MAX_EVENT_ID


class Kind(Enum):
    """What a column holds. Rows carry text for ``JSON`` and ``TIME`` (ISO 8601, UTC), and 1 or 0 for ``FLAG``."""

    TEXT = "text"
    WHOLE = "a whole number of 64 bits"
    FLAG = "yes or no"
    TIME = "an instant"
    JSON = "JSON text, as it came"
    BYTES = "bytes"


@dataclass(frozen=True)
class Column:
    """A column; ``required`` ones are never NULL; ``length`` is how many characters a text of a key may have."""

    name: str
    kind: Kind
    required: bool = True
    length: int | None = None


#: Characters of a feed's name.
MAX_FEED: Final = 250

_FEED_COLUMN: Final = Column("feed", Kind.TEXT, length=MAX_FEED)


@dataclass(frozen=True)
class Index:
    """An index; ``covers``: more columns to keep in it, where the database would look up each row for them."""

    columns: tuple[str, ...]
    covers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table: ``{prefix}{suffix}``, unique by ``key``; ``indexes``: more, where a database gains by them."""

    suffix: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()


#: Every event, once (service.md, Events).
#:
#: ``feed``         the account whose feed it is: its site address. An ``event_id`` is unique within one feed only
#: ``event_id``     as it came; with ``feed``, the key
#: ``type``         ``transfer_sent``, ``file_downloaded``, or any other: the set is open
#: ``timestamp``    as it came; NULL where there was none
#: ``occurred_at``  the same as an instant, UTC; NULL where ``timestamp`` is no ISO 8601 date and time. One without a
#:                  zone is taken as UTC; a number is not guessed at (its unit and epoch are not documented). NULL in
#:                  the years 1 and 9999 too, which another time zone may leave
#: ``data``         the payload as JSON; NULL where there was none, or where ``raw`` has it. ``jsonb`` of
#:                  PostgreSQL keeps its values, the other databases its spelling too
#: ``other``        fields that service.md does not name, as one JSON object; NULL as ``data``
#: ``raw``          the whole line as it came, where a JSON column would refuse or change what it says (a NUL, an
#:                  unpaired surrogate, a name twice in one object, a number beyond a double or of very many digits),
#:                  or where this database did refuse it; NULL everywhere else
#: ``cursor_from``  the cursor that its page was asked with; ``line`` its line of that page, from 1
#: ``landed_at``    when its page was landed first, UTC
EVENTS: Final = Table(
    "events",
    (
        _FEED_COLUMN,
        Column("event_id", Kind.TEXT, length=MAX_EVENT_ID),
        Column("type", Kind.TEXT),
        Column("timestamp", Kind.TEXT, required=False),
        Column("occurred_at", Kind.TIME, required=False),
        Column("data", Kind.JSON, required=False),
        Column("other", Kind.JSON, required=False),
        Column("raw", Kind.TEXT, required=False),
        Column("cursor_from", Kind.WHOLE),
        Column("line", Kind.WHOLE),
        Column("landed_at", Kind.TIME),
    ),
    key=("feed", "event_id"),
)

#: Where each feed is read on from (service.md, GET /v1/events, Cursor rules): one row per ``feed``.
#: ``airflow outbound-transfer feed reset --to 0`` reads the whole feed again, without duplicates.
FEED_CURSOR: Final = Table(
    "feed_cursor",
    (_FEED_COLUMN, Column("cursor", Kind.WHOLE), Column("updated_at", Kind.TIME)),
    key=("feed",),
)

#: Lines that are no events, or events that this database can hold in no other form: ``raw`` bytes, ``reason``, and
#: where they stood, as in the events' table (about where, after a reset, in pages that are cut otherwise then).
REJECTED_LINES: Final = Table(
    "rejected_lines",
    (
        _FEED_COLUMN,
        Column("cursor_from", Kind.WHOLE),
        Column("line", Kind.WHOLE),
        Column("raw", Kind.BYTES),
        Column("reason", Kind.TEXT),
        Column("landed_at", Kind.TIME),
    ),
    key=("feed", "cursor_from", "line"),
)

#: What was asked of the feed and what came of it: the client's side of the service's feed usage log.
#:
#: ``poll_id``      the key: opaque, unique
#: ``feed``         as in the events' table
#: ``polled_at``    when the answer came, UTC
#: ``action``       ``poll``; ``claim``: an answer whose cursor, in ``cursor_to``, was not believed at once, so that
#:                  nothing was landed; or ``reset``, ``rebuild``, ``replay``: what a person did to cursor or lines
#: ``status``       HTTP status; NULL where no answer came, and for what is no poll
#: ``events``       events of the page, ``new_events`` of them not in the table before; 0 where nothing was landed
#: ``rejected``     lines of the page that are no events
#: ``cursor_from``  the cursor before, ``cursor_to`` the cursor after; NULL where it did not move because of an error
#: ``has_more``     whether the feed had more then; NULL where it did not say
#: ``note``         what went wrong, or who did what; NULL where there is nothing to say
FEED_POLLS: Final = Table(
    "feed_polls",
    (
        Column("poll_id", Kind.TEXT, length=32),
        _FEED_COLUMN,
        Column("polled_at", Kind.TIME),
        Column("action", Kind.TEXT),
        Column("status", Kind.WHOLE, required=False),
        Column("events", Kind.WHOLE),
        Column("new_events", Kind.WHOLE),
        Column("rejected", Kind.WHOLE),
        Column("cursor_from", Kind.WHOLE),
        Column("cursor_to", Kind.WHOLE, required=False),
        Column("has_more", Kind.FLAG, required=False),
        Column("note", Kind.TEXT, required=False),
    ),
    key=("poll_id",),
    indexes=(Index(("feed", "polled_at")),),
)

#: Which version each set of tables has (``part``: ``feed``, ``transfers`` or ``deliveries``), so that an older one is
#: upgraded.
SCHEMA: Final = Table(
    "schema",
    (Column("part", Kind.TEXT, length=32), Column("version", Kind.WHOLE), Column("updated_at", Kind.TIME)),
    key=("part",),
)

#: Sent transfers as the listing gives them (service.md, Resources and their fields).
#:
#: ``account``      whose they are: the account's site address
#: ``transfer_id``  with ``account``, the key
#: ``conn_id``      Airflow's connection whose key listed it: a key sees its own user's transfers only
#: ``status``       as last seen
#: ``subject``      as it was sent
#: ``sent_at``      when it was sent, UTC; ``expires_at`` when its pickup ends
#: ``recipients``   how many; ``collected`` how many of them have picked up
#: ``first_seen_at``, ``seen_at``  when the listing was read that showed it first, and last
TRANSFERS: Final = Table(
    "transfers",
    (
        Column("account", Kind.TEXT, length=MAX_FEED),
        Column("transfer_id", Kind.TEXT, length=MAX_EVENT_ID),
        Column("conn_id", Kind.TEXT),
        Column("status", Kind.TEXT),
        Column("subject", Kind.TEXT),
        Column("sent_at", Kind.TIME, required=False),
        Column("expires_at", Kind.TIME, required=False),
        Column("recipients", Kind.WHOLE),
        Column("collected", Kind.WHOLE),
        Column("first_seen_at", Kind.TIME),
        Column("seen_at", Kind.TIME),
    ),
    key=("account", "transfer_id"),
)

#: Their recipients: ``position`` in the transfer, from 1 (an address may stand there twice), ``email``, ``name``, and
#: ``picked_up_at``, UTC: NULL until that recipient has downloaded.
RECIPIENTS: Final = Table(
    "recipients",
    (
        Column("account", Kind.TEXT, length=MAX_FEED),
        Column("transfer_id", Kind.TEXT, length=MAX_EVENT_ID),
        Column("position", Kind.WHOLE),
        Column("email", Kind.TEXT),
        Column("name", Kind.TEXT),
        Column("picked_up_at", Kind.TIME, required=False),
    ),
    key=("account", "transfer_id", "position"),
)

#: How far the listing of each ``account`` by each connection has been read whole: every transfer of its key's user that
#: was sent up to ``newest_sent_at`` is in the table of transfers. A run that breaks off leaves it as it was.
LISTINGS: Final = Table(
    "listings",
    (
        Column("account", Kind.TEXT, length=MAX_FEED),
        Column("conn_id", Kind.TEXT, length=MAX_FEED),
        Column("newest_sent_at", Kind.TIME),
        Column("updated_at", Kind.TIME),
    ),
    key=("account", "conn_id"),
)

#: Deliveries as the tasks that make them tell (the ledger): one row per draft, whatever became of it.
#:
#: ``account``      whose: the account's site address; with ``transfer_id``, the key
#: ``conn_id``      Airflow's connection to the service
#: ``dag_id``, ``task_id``, ``run_id``, ``map_index`` (-1 where the task is not mapped), ``try_number``  whose delivery:
#:                  the task that made the draft, or the first that delivers it and could be written down
#: ``status``       the service's (``draft``, ``pending``, ...) as the delivery's own tasks saw it last, or ``removed``:
#:                  a draft that was discarded. Where the transfers' table is kept, it may know better
#: ``error``        what ended the last try, in a line and without addresses; NULL where nothing did
#: ``files``        those that are attached, as JSON: ``[{"name": ..., "size": bytes, "sha256": hex or null}, ...]``;
#:                  null where no task knows what was sent. ``bytes`` is the sum of their sizes
#: ``recipients``   how many; ``collected`` how many of them had picked up then
#: ``created_at``   when the draft was made; ``sent_at``, ``expires_at`` as the service says
#: ``ended_at``     when a final status was seen first; NULL until then
#: ``updated_at``   when this row was written last
DELIVERIES: Final = Table(
    "deliveries",
    (
        Column("account", Kind.TEXT, length=MAX_FEED),
        Column("transfer_id", Kind.TEXT, length=MAX_EVENT_ID),
        Column("conn_id", Kind.TEXT),
        Column("dag_id", Kind.TEXT),
        Column("task_id", Kind.TEXT),
        Column("run_id", Kind.TEXT),
        Column("map_index", Kind.WHOLE),
        Column("try_number", Kind.WHOLE),
        Column("subject", Kind.TEXT),
        Column("status", Kind.TEXT),
        Column("error", Kind.TEXT, required=False),
        Column("files", Kind.JSON),
        Column("bytes", Kind.WHOLE),
        Column("recipients", Kind.WHOLE),
        Column("collected", Kind.WHOLE),
        Column("created_at", Kind.TIME),
        Column("sent_at", Kind.TIME, required=False),
        Column("expires_at", Kind.TIME, required=False),
        Column("ended_at", Kind.TIME, required=False),
        Column("updated_at", Kind.TIME),
    ),
    key=("account", "transfer_id"),
    # The first one covers what counting by day and outcome reads.
    indexes=(
        Index(("created_at", "dag_id"), covers=("status", "account", "transfer_id", "updated_at")),
        Index(("run_id",)),
    ),
)

#: Calls of the service, counted by minute and process: rows are only ever added. What one minute saw is their sum.
#: Those of operators, sensors, ingestions and triggerers; workers add theirs when a task ends or defers.
#:
#: ``call_id``      the key: opaque, unique
#: ``minute``       its begin, UTC
#: ``conn_id``      Airflow's connection, which stands for its key: no part of a key is kept
#: ``operation``    as :class:`outbound_transfer.protocol.exchange.Operation` names it
#: ``status``       HTTP status; 0 where no answer came
#: ``calls``        how many
CALLS: Final = Table(
    "calls",
    (
        Column("call_id", Kind.TEXT, length=32),
        Column("minute", Kind.TIME),
        Column("account", Kind.TEXT, length=MAX_FEED),
        Column("conn_id", Kind.TEXT),
        Column("operation", Kind.TEXT),
        Column("status", Kind.WHOLE),
        Column("calls", Kind.WHOLE),
    ),
    key=("call_id",),
    indexes=(Index(("minute",)),),
)

TABLES: Final = (
    EVENTS,
    FEED_CURSOR,
    REJECTED_LINES,
    FEED_POLLS,
    TRANSFERS,
    RECIPIENTS,
    LISTINGS,
    DELIVERIES,
    CALLS,
    SCHEMA,
)
