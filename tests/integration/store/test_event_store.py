"""What the event store keeps of a page, and its cursor, in real databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outbound_transfer.client.events import Page
from outbound_transfer.store.destination import PollRecord
from outbound_transfer.store.errors import CursorMoved, InvalidCursor, InvalidName, TooManyRejectedLines
from outbound_transfer.store.events import EventStore, read_cursors
from outbound_transfer.transfers.feed_ingest import FeedIngest, IngestProgress
from support.feed_pages import CURSOR, IDS, PAGES, REJECTED, event, events, page, state_of, tables
from support.remote_files import peak_memory
from support.warehouses import Hook


def test_a_page_is_landed_with_its_cursor(any_hook: Hook) -> None:
    feed = tables(any_hook)
    assert feed.get_or_create_cursor() == 0
    assert feed.load_page(page(0, *events(0, 2), b"junk \xff", event(2))).new_events == 3
    assert feed.get_or_create_cursor() == 4
    assert feed.load_page(page(4)).new_events == 0
    assert feed.load_page(page(4, event(2), event(3))).new_events == 1
    assert any_hook.fetch(IDS) == [("e0",), ("e1",), ("e2",), ("e3",)]
    assert any_hook.fetch(CURSOR) == [(6,)]
    ((raw,),) = any_hook.fetch(REJECTED)
    assert bytes(raw) == b"junk \xff"
    assert any_hook.fetch("SELECT account, cursor_from, line_number FROM outbound_transfer_rejected_lines") == [
        ("acme", 0, 3)
    ]


def test_postgres_keeps_instants_and_json(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    feed = tables(hook)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(1, timestamp="2026-01-01T02:00:00+02:00", data={"size": 7}), event(2, timestamp=5)))
    assert hook.fetch(
        "SELECT event_id, timestamp, occurred_at = '2026-01-01T00:00Z', data ->> 'size', loaded_at <= now() "
        "FROM outbound_transfer_events ORDER BY line_number"
    ) == [("e1", "2026-01-01T02:00:00+02:00", True, "7", True), ("e2", "5", None, None, True)]


AWKWARD = ['"\\u0000"', '"\\ud800"', "1e999", '{"a":1,"a":2}', "9" * 400, '{"\\udfff":[ 1 ]}']


MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_page_that_postgresql_takes_in_parts_lands_in_its_order(hook_of: Callable[[str], Hook], driver: str) -> None:
    hook = hook_of(driver)
    feed = tables(hook)
    feed.get_or_create_cursor()
    large, some, junk = "\n" * 5 * MEGABYTE, ['"' * MEGABYTE] * 4, b"\xff\0\\" * (2 * MEGABYTE)
    small = event(1, data=["first"])
    padded = small.replace(b"[", b"[" + b" " * 5 * MEGABYTE)  # the same event, which came later
    first = [small, padded, event(2, data=large), event(2, data=large)]
    last = [*(event(3 + at, data=each) for at, each in enumerate(some)), small]
    assert feed.load_page(page(0, *first, b"\0", junk, *last)).new_events == 6
    query = "SELECT line_number, data #>> '{}' FROM outbound_transfer_events ORDER BY line_number"
    assert hook.fetch(query) == [(1, '["first"]'), (3, large), *enumerate(some, 7)]
    assert [bytes(raw) for (raw,) in hook.fetch(REJECTED)] == [b"\0", junk]


#: What JSON, text and drivers stumble over; each with another id.
HOSTILE = [
    *(f'"data":{value}' for value in AWKWARD),
    *(f'"data":{value}' for value in ("1.50", "-0", "12345678901234567890123", "1e400", "[" * 400 + "]" * 400)),
    r'"data":"\u2028\ud83d\ude00\\u0000 %s %(x)s {x} [y] ? :z $1 \" \\"',
    '"data":"\u2028\u2029\x85\x7f\ufeff\U0001f600"',
    '"a":{"b":1,"b":2}', '"\\ud800":1', '"event_id ":2', '"timestamp":"\\u0000"', '"timestamp":[1e2]',
    '"data":{},"data":1',
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "times"), [("sqlite", 6), ("duckdb", 12), ("psycopg", 5), ("psycopg2", 8)])
def test_a_line_of_50_megabytes_lands_in_bounded_memory(hook_of: Callable[[str], Hook], name: str, times: int) -> None:
    hook, size = hook_of(name), 50 * 1024 * 1024
    feed = tables(hook)
    feed.get_or_create_cursor()
    line = b'{"event_id": 1, "type": "t", "data": "' + b"\\n" * (size // 2) + b'"}'
    with peak_memory() as peak:
        assert feed.load_page(page(0, line, event(2))).new_events == 2
    assert peak[0] < times * size
    # Its JSON, quotes included; PostgreSQL's jsonb is written as text again.
    column = "CAST(data AS text)" if hook.dialect_name == "postgresql" else "data"
    assert hook.fetch(f"SELECT length({column}) FROM outbound_transfer_events ORDER BY line_number")[0] == (size + 2,)


texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
fields = values.map(lambda value: f'"data":{json.dumps(value)}') | st.sampled_from(HOSTILE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(fields, texts, texts), min_size=1, max_size=5))
@example([(each, "t", "2026-01-01T00:00:00Z") for each in HOSTILE * 5])
def test_a_warehouse_takes_whatever_the_feed_calls_an_event(hook: Hook, rows: list[tuple[str, str, str]]) -> None:
    feed = tables(hook)
    cursor = feed.get_or_create_cursor()
    lines = [
        f'{{"event_id":{10**22 + at},"type":{json.dumps(kind)},"timestamp":{json.dumps(stamp)},{field}}}'.encode()
        + b"\r" * (at % 2)
        for at, (field, kind, stamp) in enumerate(rows, cursor)
    ]
    read = page(cursor, b"\xef\xbb\xbf" + lines[0], *lines[1:])
    assert feed.load_page(read).new_events == len(read.events)
    assert len(read.events) >= len(lines) / 2 or len(lines) <= 5, "few of many are events"
    data = "data" if hook.dialect_name == "mysql" else "CAST(data AS text)"
    of_page = f"WHERE cursor_from = {cursor} ORDER BY line_number"
    landed = hook.fetch(
        f"SELECT line_number, event_id, type, timestamp, raw, {data} FROM outbound_transfer_events {of_page}"
    )
    assert [row[:5] for row in landed] == [
        (came.line_number, came.event_id, came.type, came.timestamp, came.raw) for came in read.events
    ]
    for (*_, data), came in zip(landed, read.events, strict=True):
        assert data is None if came.raw or came.data is None else _same(data, came.data, hook)
    rejected = hook.fetch(f"SELECT raw FROM outbound_transfer_rejected_lines {of_page}")
    assert [bytes(raw) for (raw,) in rejected] == [each.raw for each in read.rejected]


def _same(landed: str, came: str, hook: Hook) -> bool:
    """To the byte; PostgreSQL keeps values, and not their spelling."""
    if hook.dialect_name != "postgresql":
        return landed == came
    exact = {"parse_float": Decimal, "parse_int": Decimal}
    return json.loads(landed, **exact) == json.loads(came, **exact)


def loaded_by(feed: EventStore, read: Page) -> int:
    options = {"address": "acme.example.com", "max_pages": 1, "max_rejected": 10, "sleep": lambda _: None}
    return FeedIngest(lambda _: read, feed, IngestProgress(), **options).run().new_events  # type: ignore[arg-type]


def test_an_event_with_a_known_id_and_other_content_is_kept_and_said(hook, caplog) -> None:
    feed = tables(hook)
    first = page(0, event(1, data={"of": "a"}), event(2, data={"of": "a"}), has_more=True)
    other = page(0, event(1, data={"of": "b"}), event(2, data={"of": "a"}), event(3, data={"of": "b"}), has_more=True)
    assert loaded_by(feed, first) == 2
    for new in (1, 0):
        feed.reset(0)
        caplog.clear()
        assert loaded_by(feed, other) == new
        assert "1 rejected line of the page after cursor 0, as of 'e1': an event with this id and oth" in caplog.text
        assert hook.fetch(IDS) == [("e1",), ("e2",), ("e3",)]
        assert [json.loads(bytes(raw))["data"] for (raw,) in hook.fetch(REJECTED)] == [{"of": "b"}]
        assert [problem for problem in feed.find_problems() if "different content" in problem] == [
            "1 rejected line with a stored event's id but different content: the feed changed the event, or it "
            "belonged to another account"
        ]


def test_a_feed_of_another_account_is_not_loaded(hook: Hook) -> None:
    feed = tables(hook)
    loaded_by(feed, page(0, *events(0, 20)))
    feed.reset(0)
    before = state_of(hook)
    with pytest.raises(TooManyRejectedLines, match="an event with this id and other content is stored"):
        loaded_by(feed, page(0, *(event(number, type="other") for number in range(20))))
    assert state_of(hook) == before


def test_a_cursor_that_somebody_changed_lands_nothing(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    for change in (
        'UPDATE outbound_transfer_feed_cursor SET "cursor" = 3',
        "DELETE FROM outbound_transfer_feed_cursor",
    ):
        hook.run(change)
        with pytest.raises(CursorMoved, match="is no longer 0"):
            feed.load_page(PAGES[0])
        assert (hook.fetch(IDS), hook.fetch(REJECTED)) == ([], [])
    feed.get_or_create_cursor()
    hook.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = -1')
    with pytest.raises(InvalidCursor, match="set it to 0"):
        feed.get_or_create_cursor()
    if hook.dialect_name == "sqlite":
        hook.run("UPDATE outbound_transfer_feed_cursor SET cursor = 'soon'")
        with pytest.raises(InvalidCursor, match="'soon'"):
            feed.get_or_create_cursor()


def test_feeds_share_tables_but_neither_cursors_nor_ids(hook: Hook) -> None:
    one, other = tables(hook, "one"), tables(hook, "other")
    one.get_or_create_cursor()
    one.load_page(page(0, event(1), b"junk", next_cursor=2**63 - 1))
    assert other.get_or_create_cursor() == 0
    assert other.load_page(page(0, event(1), b"junk")).new_events == 1
    assert one.get_or_create_cursor() == 2**63 - 1, "the largest that may be"
    assert len(hook.fetch(IDS)) == len(hook.fetch(REJECTED)) == 2


@pytest.fixture
def feed(hook: Hook) -> EventStore:
    feed = tables(hook)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(1), event(2), has_more=True))
    feed.log_poll(PollRecord(cursor_from=2, status=429, note="rate limited"))
    feed.load_page(page(2, b"junk", event(3)))
    return feed


POLLS = "SELECT action, status, events, new_events, rejected, cursor_from, cursor_to, has_more, note FROM {}"


def test_polls_resets_and_rebuilds_are_in_the_log_and_status_and_verify_find_a_sound_feed(hook, feed) -> None:
    query = POLLS.format("outbound_transfer_feed_polls ORDER BY cursor_from, polled_at")
    assert hook.fetch(query) == [
        ("poll", 200, 2, 2, 0, 0, 2, True, None),
        ("poll", 429, 0, 0, 0, 2, None, None, "rate limited"),
        ("poll", 200, 1, 1, 1, 2, 4, False, None),
    ]
    found = feed.status()
    assert (found.cursor, found.caught_up, found.events, found.rejected, found.status) == (4, True, 3, 1, 200)
    assert list(feed.find_problems()) == []
    assert read_cursors(feed.tables) == {"acme": 4}
    assert feed.reset(0) == (4, 0)
    assert feed.get_or_create_cursor() == 0
    assert feed.rebuild_cursor() == (0, 2)
    assert feed.load_page(page(2, b"junk", event(3))).new_events == 0
    query = "SELECT action, cursor_from, cursor_to FROM outbound_transfer_feed_polls WHERE action <> 'poll'"
    assert sorted(hook.fetch(query)) == [("rebuild", 0, 2), ("reset", 4, 0)]
    assert list(feed.find_problems()) == []
    with pytest.raises(InvalidCursor):
        feed.reset(-1)


def test_verify_says_what_is_wrong(hook, feed) -> None:
    hook.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = 1')
    said = "\n".join(feed.find_problems())
    assert "1 row of events" in said
    assert "1 row of rejected_lines" in said
    assert "the log ends at 4" in said
    hook.run("DELETE FROM outbound_transfer_feed_polls WHERE cursor_to = 4")
    hook.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = 7')
    feed.log_poll(PollRecord(cursor_from=5, cursor_to=7, status=200))
    assert any("the log has a gap" in fault for fault in feed.find_problems())


def test_a_feed_has_a_name_of_some_length(hook) -> None:
    for name in ("", "x" * 251):
        with pytest.raises(InvalidName):
            tables(hook, name)
