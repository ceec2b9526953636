"""What the event store keeps of a page, and its cursor, in real databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outbound_transfer.client.events import Page
from outbound_transfer.store.errors import CursorMoved, InvalidCursor, TooManyRejectedLines
from outbound_transfer.store.events import EventStore
from outbound_transfer.transfers.feed_ingest import FeedIngest, IngestProgress
from support.feed_pages import CURSOR, IDS, PAGES, REJECTED, event, events, page, state_of, tables
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


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize("field", ["data", "else", "\\u0000"])
def test_what_a_json_column_would_refuse_or_change_is_kept_as_it_came(hook: Hook, value: str, field: str) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    line = '{"event_id":"e", "type":"t","' + field + '":' + value + "}"
    assert feed.load_page(page(0, line.encode(), event(1, data={"a": 1}))).new_events == 2
    rows = hook.fetch("SELECT data IS NULL, extra_fields, raw FROM outbound_transfer_events ORDER BY line_number")
    assert rows == [(True, None, line), (False, None, None)]


def _memory(field: str) -> int:
    """Bytes that this process holds (VmRSS), or held at most (VmHWM) since the peak was last reset."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) * 1024


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


def test_a_thousand_hostile_lines_land_as_they_came(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    lines = [
        f'{{"event_id":{10**22 + at},"type":"t",{HOSTILE[at % len(HOSTILE)]}}}{chr(13) * (at % 2)}'.encode()
        for at in range(1_000)
    ]
    read = page(0, b"\xef\xbb\xbf" + lines[0], *lines[1:])
    assert len(read.events) > 800
    assert feed.load_page(read).new_events == len(read.events)
    as_text = "data" if hook.dialect_name == "mysql" else "CAST(data AS text)"
    landed = hook.fetch(
        f"SELECT event_id, line_number, {as_text}, raw FROM outbound_transfer_events ORDER BY line_number"
    )
    for (event_id, line_number, data, raw), came in zip(landed, read.events, strict=True):
        assert (event_id, line_number, raw) == (came.event_id, came.line_number, came.raw)
        assert data is None if came.raw or came.data is None else _same(data, came.data, hook)
    assert [bytes(raw) for (raw,) in hook.fetch(REJECTED)] == [each.raw for each in read.rejected]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "times"), [("sqlite", 6), ("duckdb", 12), ("psycopg", 5), ("psycopg2", 8)])
def test_a_line_of_50_megabytes_lands_in_bounded_memory(hook_of: Callable[[str], Hook], name: str, times: int) -> None:
    hook, size = hook_of(name), 50 * 1024 * 1024
    feed = tables(hook)
    feed.get_or_create_cursor()
    line = b'{"event_id": 1, "type": "t", "data": "' + b"\\n" * (size // 2) + b'"}'
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    assert feed.load_page(page(0, line, event(2))).new_events == 2
    assert _memory("VmHWM") - before < times * size
    # Its JSON, quotes included; PostgreSQL's jsonb is written as text again.
    column = "CAST(data AS text)" if hook.dialect_name == "postgresql" else "data"
    assert hook.fetch(f"SELECT length({column}) FROM outbound_transfer_events ORDER BY line_number")[0] == (size + 2,)


texts = st.text(max_size=20)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


hostile = st.sampled_from(
    ['"\\ud800"', '"\\u0000"', "-0", "1e99999", "9" * 400, '"\\/"', '"\x7f"', "[" * 900 + "]" * 900]
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(values.map(json.dumps) | hostile, texts, texts), min_size=1, max_size=5))
def test_a_warehouse_takes_whatever_the_feed_calls_an_event(hook: Hook, rows: list[tuple[str, str, str]]) -> None:
    feed = tables(hook)
    cursor = feed.get_or_create_cursor()
    lines = [
        f'{{"event_id":{number},"type":{json.dumps(kind)},"timestamp":{json.dumps(stamp)},"data":{data}}}'.encode()
        for number, (data, kind, stamp) in enumerate(rows, cursor)
    ]
    read = page(cursor, *lines)
    assert feed.load_page(read).new_events == len(read.events)
    data_as_text = "data" if hook.dialect_name == "mysql" else "CAST(data AS text)"
    landed = hook.fetch(
        f"SELECT type, timestamp, {data_as_text}, raw FROM outbound_transfer_events WHERE cursor_from = {cursor}"
        " ORDER BY line_number"
    )
    assert [row[:2] for row in landed] == [(event.type, event.timestamp) for event in read.events]
    for (_, _, data, raw), came in zip(landed, read.events, strict=True):
        assert raw == came.raw
        assert (data is None and raw == lines[came.line_number - 1].decode()) if raw else _same(data, came.data, hook)


def _same(landed: str, came: str, hook: Hook) -> bool:
    """To the byte; PostgreSQL keeps values, and not their spelling."""
    if hook.dialect_name != "postgresql":
        return landed == came
    exact = {"parse_float": Decimal, "parse_int": Decimal}
    return json.loads(landed, **exact) == json.loads(came, **exact)


def test_a_reset_reads_everything_again_without_duplicates(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    lines = [event(0), b"junk", event(1), b"junk", event(2), b"more junk"]
    for start in (0, 2, 4):
        feed.load_page(page(start, *lines[start : start + 2]))
    before = hook.fetch(IDS), [bytes(raw) for (raw,) in hook.fetch(REJECTED)]
    for reset in ('UPDATE outbound_transfer_feed_cursor SET "cursor" = 0', "DELETE FROM outbound_transfer_feed_cursor"):
        hook.run(reset)
        assert feed.get_or_create_cursor() == 0
        # The pages are cut otherwise this time.
        assert feed.load_page(page(0, *lines[:5])).new_events == 0
        assert feed.load_page(page(5, *lines[5:])).new_events == 0
        assert (hook.fetch(IDS), [bytes(raw) for (raw,) in hook.fetch(REJECTED)]) == before
        assert before[1] == [b"junk", b"more junk"]


VALUES = ['{"size": 1.50, "b": [1e2, {"z": 1, "a": -0.0}], "a": "Gr\u00fc\u00dfe"}', "null", "true", "[]", *AWKWARD]


def test_an_event_that_comes_again_is_the_same_however_the_database_keeps_it(any_hook: Hook) -> None:
    feed = tables(any_hook)
    feed.get_or_create_cursor()
    lines = [f'{{"event_id": {at}, "type": "t", "else": {at}, "data": {value}}}' for at, value in enumerate(VALUES)]
    read = page(0, *(line.encode() for line in lines), event(1, timestamp=5), event(2, type="日本"))
    assert feed.load_page(read).new_events == len(read.events) == len(VALUES) + 2
    feed.reset(0)
    assert feed.load_page(read).new_events == 0


def loaded_by(feed: EventStore, read: Page) -> int:
    ingest = FeedIngest(
        lambda _: read,
        feed,
        IngestProgress(),
        address="acme.example.com",
        max_pages=1,
        max_rejected=10,
        sleep=lambda _: None,
    )
    return ingest.run().new_events


def test_an_event_with_a_known_id_and_other_content_is_kept_and_said(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
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
        assert [problem for problem in feed.find_problems() if "other content" in problem] == [
            "1 rejected line with the id of a stored event and other content: the feed has changed the event, or it "
            "was that of another account"
        ]


def test_two_events_of_one_id_on_one_page_are_both_kept(hook: Hook) -> None:
    feed = tables(hook)
    assert loaded_by(feed, page(0, event(1), event(1, type="other"), event(1), event(2))) == 2
    assert hook.fetch(IDS) == [("e1",), ("e2",)]
    assert [json.loads(bytes(raw))["type"] for (raw,) in hook.fetch(REJECTED)] == ["other"]


def test_a_feed_of_another_account_is_not_loaded(hook: Hook) -> None:
    feed = tables(hook)
    loaded_by(feed, page(0, *events(0, 20)))
    feed.reset(0)
    before = state_of(hook)
    with pytest.raises(TooManyRejectedLines, match="an event with this id and other content is stored"):
        loaded_by(feed, page(0, *(event(number, type="other") for number in range(20))))
    assert state_of(hook) == before


@pytest.mark.parametrize("table", ["events", "feed_polls"])
def test_a_constraint_of_the_users_own_is_no_lost_race(hook: Hook, table: str) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    column = "extra_fields" if table == "events" else "note"
    if hook.dialect_name == "sqlite":
        hook.run(
            f"CREATE TRIGGER t BEFORE INSERT ON outbound_transfer_{table} WHEN NEW.{column} IS NULL"
            " BEGIN SELECT RAISE(ABORT, 'NOT NULL constraint failed'); END"
        )
    else:
        change = f"MODIFY {column} LONGTEXT" if hook.dialect_name == "mysql" else f"ALTER COLUMN {column} SET"
        hook.run(f"ALTER TABLE outbound_transfer_{table} {change} NOT NULL")
    with pytest.raises(Exception, match=r"(?i)(not|be).null") as caught:
        feed.load_page(page(0, *events(0, 2)))
    assert not isinstance(caught.value, CursorMoved)
    assert state_of(hook) == (0, [], 0)


@pytest.mark.parametrize(
    "change", ['UPDATE outbound_transfer_feed_cursor SET "cursor" = 3', "DELETE FROM outbound_transfer_feed_cursor"]
)
def test_a_cursor_that_is_changed_under_a_reader_lands_nothing(hook: Hook, change: str) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    hook.run(change)
    with pytest.raises(CursorMoved, match="is no longer 0"):
        feed.load_page(PAGES[0])
    assert (hook.fetch(IDS), hook.fetch(REJECTED)) == ([], [])


def test_invalid_cursor_is_rejected(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    hook.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = -1')
    with pytest.raises(InvalidCursor, match="set it to 0"):
        feed.get_or_create_cursor()
    if hook.dialect_name == "sqlite":
        hook.run("UPDATE outbound_transfer_feed_cursor SET cursor = 'soon'")
        with pytest.raises(InvalidCursor, match="'soon'"):
            feed.get_or_create_cursor()


def test_the_largest_cursor_fits(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(1), next_cursor=2**63 - 1))
    assert feed.get_or_create_cursor() == 2**63 - 1


def test_feeds_share_tables_but_neither_cursors_nor_ids(hook: Hook) -> None:
    one, other = tables(hook, "one"), tables(hook, "other")
    one.get_or_create_cursor()
    one.load_page(page(0, event(1), b"junk", next_cursor=7))
    assert other.get_or_create_cursor() == 0
    assert other.load_page(page(0, event(1), b"junk")).new_events == 1
    assert one.get_or_create_cursor() == 7
    assert len(hook.fetch(IDS)) == len(hook.fetch(REJECTED)) == 2


def test_full_pages_land(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    full = [page(s, *(event(n, data={"name": "x" * 500}) for n in range(s, s + 1_000))) for s in range(0, 5_000, 1_000)]
    assert [feed.load_page(each).new_events for each in full] == [1_000] * 5
