"""The event store: a page's events, rejected lines, poll and cursor are stored in one transaction."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa
from msgspec.structs import asdict, replace
from sqlalchemy.exc import DBAPIError

from outbound_transfer.client.events import MAX_CURSOR, Event, Page, RejectedLine, read_line
from outbound_transfer.store.destination import (
    MAX_NOTE,
    EventDestination,
    FeedStatus,
    Loaded,
    PollRecord,
    check_account,
    check_rejected,
)
from outbound_transfer.store.engine import is_refusal
from outbound_transfer.store.errors import CursorMoved, InvalidCursor, PageRefused, UnknownFeed, words_of
from outbound_transfer.store.insert import MAX_KEYS, Row, insert_new
from outbound_transfer.store.rows import ERASED, read_event_time, storable_text, utc_now
from outbound_transfer.store.tables import FEED, FEED_CURSOR, Tables
from outbound_transfer.wording import pluralize

log = logging.getLogger(__name__)

#: Why an event is a rejected line whose id is that of another event.
OTHER_CONTENT: Final = "an event with this id and other content is stored"

#: The columns of an event's content.
_COLUMNS: Final = ("event_id", "type", "timestamp", "data", "extra_fields", "raw")


def read_cursors(tables: Tables) -> dict[str, Any]:
    """Return the cursors of all feeds that have been read, by account."""
    cursors = tables.named(FEED_CURSOR)
    with tables.database.begin(reads_only=True) as tx:
        if not sa.inspect(tx).has_table(cursors.name, cursors.schema):
            return {}
        query = sa.select(cursors.c.account, cursors.c.cursor).order_by(cursors.c.account)
        return dict(tx.execute(query).tuples().all())


class EventStore(EventDestination):
    """The stored events, cursor, polls and rejected lines of one feed. Each command is recorded in the log of polls.

    :param clock: returns the time of rows; default: the database's, as the clocks of workers differ.
    :raises InvalidName: the account's name is empty or too long.
    """

    def __init__(self, tables: Tables, account: str, *, clock: Callable[[], datetime] | None = None) -> None:
        check_account(account)
        self.tables, self.database, self.account, self._clock = tables, tables.database, account, clock
        self._events, self._cursor, self._rejected, self._polls = map(tables.named, FEED)

    def _now(self, tx: sa.Connection) -> datetime:
        return self._clock() if self._clock else self.database.now(tx)

    def get_or_create_cursor(self) -> int:
        try:
            return self.read_cursor()
        except (UnknownFeed, DBAPIError):  # a table of another program may have the name
            self.tables.create(FEED)
            self.database.retry(self._insert_cursor)
        return self.read_cursor()

    def _insert_cursor(self) -> None:
        # The row exists before the first page, so that setting the cursor is always the same statement.
        with self.database.begin() as tx:
            insert_new(tx, self._cursor, [{"account": self.account, "cursor": 0, "updated_at": self._now(tx)}])

    def bind_account(self, address: str) -> None:
        self.tables.bind_account(self.account, address)

    def read_address(self) -> str | None:
        return self.tables.read_address(self.account)

    def read_cursor(self) -> int:
        cursors = read_cursors(self.tables)
        if self.account not in cursors:
            raise self._unknown_feed("database", list(cursors))
        position = cursors[self.account]
        if not isinstance(position, int) or not 0 <= position <= MAX_CURSOR:
            text = f"the cursor of the feed {self.account} is {position!r}"
            raise InvalidCursor(f"{text}: set it to 0, or to where it was")
        return position

    def load_page(self, page: Page, max_rejected: int | None = None) -> Loaded:
        try:
            return self.database.retry(lambda: self._load(page, max_rejected))
        except (DBAPIError, ValueError) as error:
            if not is_refusal(error):
                raise
        refused = {event.line_number: reason for event in page.events if (reason := self._refusal(event))}
        if refused and len(refused) == len(page.events):
            reason = next(iter(refused.values()))
            raise PageRefused(f"the database refuses every row of the page after {page.cursor}: {reason}")
        storable = _reject(page, {line: f"the database refused it: {reason}" for line, reason in refused.items()})
        return self.database.retry(lambda: self._load(storable, max_rejected))

    def _load(self, page: Page, max_rejected: int | None) -> Loaded:
        with self.database.begin() as tx:
            # First, because it locks the row: readers that race for one page queue here.
            self.compare_and_set_cursor(tx, page.cursor, page.next_cursor)
            now = self._now(tx)
            new = insert_new(tx, self._events, [self._event_row(event, page.cursor, now) for event in page.events])
            if new < len(page.events):
                page = self._reject_conflicts(tx, page)
            check_rejected(page, max_rejected)
            self._save_rejected(tx, page, now)
            moved: dict[str, Any] = {"cursor_to": page.next_cursor, "has_more": page.has_more}
            moved |= {"events": len(page.events), "new_events": new, "rejected": len(page.rejected)}
            self._append_poll(tx, PollRecord(status=200, cursor_from=page.cursor, **moved), now)
        return Loaded(page, new)

    def _refusal(self, event: Event) -> str | None:
        try:
            with self.database.begin() as tx:
                insert_new(tx, self._events, [self._event_row(event, 0, self._now(tx))])
                tx.rollback()
        except (DBAPIError, ValueError) as error:
            if not is_refusal(error):
                raise
            # In ASCII, because the database may have refused other characters.
            return words_of(error).replace("\0", " ").encode("ascii", "backslashreplace").decode()
        return None

    def _reject_conflicts(self, tx: sa.Connection, page: Page) -> Page:
        """Return the page with the events as rejected lines whose id is that of another event."""
        events, ids, known = self._events.c, [event.event_id for event in page.events], dict[str, Event]()
        for at in range(0, len(ids), MAX_KEYS):
            is_known = (events.account == self.account) & events.event_id.in_(ids[at : at + MAX_KEYS])
            for row in tx.execute(sa.select(self._events).where(is_known)).mappings():
                known[row["event_id"]] = event_of(dict(row))
        conflicts = find_conflicts(page.events, known)
        if conflicts:
            count, first = pluralize(len(conflicts), "rejected line"), conflicts[0].event_id
            log.warning("%s of the page after cursor %d, as of %r: %s", count, page.cursor, first, OTHER_CONTENT)
        return _reject(page, {event.line_number: OTHER_CONTENT for event in conflicts})

    def compare_and_set_cursor(self, tx: sa.Connection, old: int, new: int) -> None:
        is_row = (self._cursor.c.account == self.account) & (self._cursor.c.cursor == old)
        now = self._clock() if self._clock else utc_now()
        # The time changes with each write, so the count does not depend on what a driver counts.
        if tx.execute(sa.update(self._cursor).where(is_row).values(cursor=new, updated_at=now)).rowcount != 1:
            raise CursorMoved(f"the cursor of the feed {self.account} is no longer {old}")

    def _save_rejected(self, tx: sa.Connection, page: Page, now: datetime) -> None:
        rejected, lines = self._rejected.c, page.lines()
        of_account = rejected.account == self.account
        if page.events and tx.scalar(sa.select(rejected.line_number).where(of_account).limit(1)) is not None:
            # The feed is read again, and lines of it are valid by now, or the database accepts them.
            digests = [_digest(lines[event.line_number - 1]) for event in page.events]
            for at in range(0, len(digests), MAX_KEYS):
                is_known = rejected.line_digest.in_(digests[at : at + MAX_KEYS])
                tx.execute(sa.delete(self._rejected).where(of_account, is_known))
        of_page = {"account": self.account, "cursor_from": page.cursor, "loaded_at": now}
        rows = [{**asdict(line), "line_digest": _digest(line.raw), **of_page} for line in page.rejected]
        insert_new(tx, self._rejected, rows)

    def _append_poll(self, tx: sa.Connection, poll: PollRecord, now: datetime | None = None) -> None:
        note = None if poll.note is None else storable_text(poll.note)[:MAX_NOTE]
        row = {**asdict(poll), "note": note, "account": self.account, "polled_at": now or self._now(tx)}
        tx.execute(sa.insert(self._polls), {"poll_id": uuid.uuid4().hex, **row})

    def log_poll(self, poll: PollRecord) -> None:
        with self.database.begin() as tx:
            self._append_poll(tx, poll)

    def _event_row(self, event: Event, cursor: int, now: datetime) -> Row:
        content = asdict(event) if event.raw is None else {**asdict(event), "data": None, "extra_fields": None}
        times = {"occurred_at": read_event_time(event.timestamp), "loaded_at": now}
        return {"account": self.account, **content, **times, "cursor_from": cursor}

    def _select(self, table: sa.Table, *columns: Any) -> sa.Select[Any]:
        return sa.select(*columns).select_from(table).where(table.c.account == self.account)

    def status(self, *, counts: bool = True) -> FeedStatus:
        cursor, polls, events, count = self.read_cursor(), self._polls.c, self._events.c, sa.func.count()
        of_polls = self._select(self._polls, polls.polled_at, polls.status, polls.note, polls.has_more)
        last_poll = of_polls.where(polls.action == "poll").order_by(polls.polled_at.desc()).limit(1)
        newest = [sa.func.max(column, type_=column.type) for column in (events.loaded_at, events.occurred_at)]
        found, no_poll = FeedStatus(account=self.account, address=self.read_address(), cursor=cursor), (None,) * 4
        with self.database.begin(reads_only=True) as tx:
            updated_at = tx.scalar(self._select(self._cursor, self._cursor.c.updated_at))
            polled_at, status, note, _ = tx.execute(last_poll).first() or no_poll
            page_at, *_, has_more = tx.execute(last_poll.where(polls.cursor_to.is_not(None))).first() or no_poll
            if counts:
                number, loaded_at, occurred_at = tx.execute(self._select(self._events, count, *newest)).one()
                rejected = tx.scalar(self._select(self._rejected, count))
                found = replace(found, events=number, rejected=rejected, loaded_at=loaded_at, occurred_at=occurred_at)
        caught_up = None if page_at is None else not has_more
        of_poll = {"page_at": page_at, "caught_up": caught_up, "polled_at": polled_at, "status": status, "note": note}
        return replace(found, updated_at=updated_at, **of_poll)

    def find_problems(self) -> Iterator[str]:
        position, polls = self.read_cursor(), self._polls.c
        moves = self._select(self._polls, polls.cursor_from, polls.cursor_to, polls.polled_at)
        moves = moves.where(polls.cursor_to.is_not(None)).order_by(polls.polled_at)
        with self.database.begin(reads_only=True) as tx:
            for name, table in (("events", self._events), ("rejected_lines", self._rejected)):
                if count := tx.scalar(self._select(table, sa.func.count()).where(table.c.cursor_from >= position)):
                    yield (
                        f"{pluralize(count, 'row')} of {name} came with pages from cursor {position} on: it was reset "
                        "or lost. The next run loads no event twice; `feed rebuild-cursor` makes it skip these "
                        "pages"
                    )
            others = self._select(self._rejected, sa.func.count()).where(self._rejected.c.reason == OTHER_CONTENT)
            if count := tx.scalar(others):
                yield (
                    f"{pluralize(count, 'rejected line')} with a stored event's id but different content: the feed "
                    "changed the event, or it belonged to another account"
                )
            at: int | None = None
            with tx.execute(moves.execution_options(yield_per=1_000)) as found:
                for start, end, moved_at in found:
                    if at not in (None, start):
                        moved = f"was at {at}, and at {start} when it moved next ({moved_at})"
                        yield f"the cursor {moved}: the log has a gap"
                    at = end
            if at not in (None, position):
                yield f"the cursor is {position}, but the log ends at {at}: it was changed outside the log"

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int, int]:
        return self._set(to, "reset", "set by command", expected)

    def rebuild_cursor(self) -> tuple[int, int]:
        newest: list[tuple[datetime, int]] = []
        with self.database.begin(reads_only=True) as tx:
            for table in (self._events, self._rejected):
                rows = self._select(table, table.c.loaded_at, table.c.cursor_from)
                rows = rows.order_by(table.c.loaded_at.desc(), table.c.cursor_from).limit(1)
                newest += tx.execute(rows).tuples()
        return self._set(max(newest)[1] if newest else 0, "rebuild", "from the rows")

    def _set(self, to: int, action: str, note: str, expected: int | None = None) -> tuple[int, int]:
        position = self.read_cursor()
        self._check_move(position, to, expected)
        with self.database.begin() as tx:
            self.compare_and_set_cursor(tx, position, to)
            self._append_poll(tx, PollRecord(action=action, cursor_from=position, cursor_to=to, note=note))
        return position, to


def _reject(page: Page, reasons: Mapping[int, str]) -> Page:
    lines = page.lines()
    rejected = [*page.rejected, *(RejectedLine(at, lines[at - 1], reason) for at, reason in reasons.items())]
    return replace(
        page,
        events=tuple(event for event in page.events if event.line_number not in reasons),
        rejected=tuple(sorted(rejected, key=lambda each: each.line_number)),
    )


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def content_digest(event: Event) -> str:
    """Return a digest of type, timestamp and values, however their JSON is written; of an erased event, the same."""
    if digest := read_erased_digest(event.raw):
        return digest
    if event.raw is not None:
        parsed = read_line(event.raw.encode(), event.line_number)
        event = parsed if isinstance(parsed, Event) else event
    content = (event.type, event.timestamp, _value(event.data), _value(event.extra_fields))
    return hashlib.sha256(repr(content).encode(errors="surrogatepass")).hexdigest()


def erase_event(event: Event) -> Event:
    """Return an event without its payload. Read again, it is the same event, and another one of its id is not."""
    return replace(event, data=None, extra_fields=None, raw=erased_content(content_digest(event)))


def event_of(row: Mapping[str, Any]) -> Event:
    """Return the event of a row with these columns, without its line number."""
    return Event(line_number=0, **{name: row[name] for name in _COLUMNS})


def find_conflicts(events: Iterable[Event], known: Mapping[str, Event]) -> list[Event]:
    """Return the events whose content is not that of the ``known`` one of their id, or of the first among them."""
    first, conflicts = dict(known), []
    for event in events:
        before = first.setdefault(event.event_id, event)
        if before is not event and content_digest(before) != content_digest(event):
            conflicts.append(event)
    return conflicts


def _value(text: str | None) -> Any:
    """Return the value of a JSON text, for :func:`repr`; a missing value is null, and another text is itself."""
    try:
        return json.loads(text or "null", object_pairs_hook=_object, parse_int=_number, parse_float=_number)
    except (ValueError, RecursionError):  # somebody has changed what is stored
        return "text", text


def _object(pairs: list[tuple[str, Any]]) -> tuple[str, str]:
    # A digest, as the representation of a value that is nested deeply could need more levels than Python has.
    text = repr(sorted(pairs, key=lambda pair: pair[0]))
    return "object", hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _number(text: str) -> tuple[int, str, int]:
    """Return sign, digits and exponent: databases write 1e2 as 100, and 1.50 as 1.5."""
    sign, digits, exponent = Decimal(text).as_tuple()
    figures = "".join(map(str, digits))
    short = figures.rstrip("0")
    return (sign, short, int(exponent) + len(figures) - len(short)) if short else (0, "0", 0)


def erased_content(digest: str) -> str:
    """Return the text that replaces an event's or a line's content."""
    return f"{ERASED} {digest}"


def read_erased_digest(content: str | None) -> str | None:
    """Return the digest of a content that was erased; None if it was not. No valid line of a feed is like it."""
    found = re.fullmatch(rf"{re.escape(ERASED)} ([0-9a-f]{{64}})", content or "")
    return found[1] if found else None
