"""Rows of the lake: every value as it was received."""

from __future__ import annotations

from datetime import UTC, datetime

from outbound_transfer.client.events import Page, read_page
from outbound_transfer.lake.rows import SCHEMA, page_table

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def page(*lines: bytes) -> Page:
    headers = {"content-type": "application/x-ndjson", "x-next-cursor": str(7 + len(lines)), "x-has-more": "false"}
    return read_page(headers, b"".join(line + b"\n" for line in lines), cursor=7)


def test_events_and_rejected_lines_are_in_the_order_of_the_page() -> None:
    table = page_table("acme", page(b'{"event_id": 1, "type": "t"}', b"junk", b'{"event_id": 2, "type": "t"}'), NOW)
    assert table.schema == SCHEMA
    assert table["event_id"].to_pylist() == ["1", None, "2"]
    assert table["rejected_line"].to_pylist() == [None, b"junk", None]
    assert table["line_number"].to_pylist() == [1, 2, 3]
    assert set(table["cursor_from"].to_pylist()) == {7}
    assert set(table["loaded_at"].to_pylist()) == {NOW}


def test_an_event_keeps_its_values() -> None:
    line = '{"event_id": "é🎉", "type": "t", "timestamp": "2026-01-31T13:00:00+02:00", "data": {"n": 1.10}, "more": 1}'
    (row,) = page_table("acme", page(line.encode()), NOW).to_pylist()
    assert row["occurred_at"] == datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert (row["event_id"], row["timestamp"]) == ("é🎉", "2026-01-31T13:00:00+02:00")
    assert (row["data"], row["extra_fields"], row["raw"]) == ('{"n": 1.10}', '{"more": 1}', None)


def test_a_payload_that_a_parser_might_refuse_is_in_the_raw_line_alone() -> None:
    line = rb'{"event_id": 1, "type": "t", "data": "\u0000"}'
    (row,) = page_table("acme", page(line), NOW).to_pylist()
    assert (row["data"], row["raw"]) == (None, line.decode())


def test_a_timestamp_in_no_known_format_is_kept_as_text() -> None:
    (row,) = page_table("acme", page(b'{"event_id": 1, "type": "t", "timestamp": "yesterday"}'), NOW).to_pylist()
    assert (row["timestamp"], row["occurred_at"]) == ("yesterday", None)


def test_an_event_that_occurs_twice_in_a_page_is_loaded_once_and_another_of_its_id_as_well() -> None:
    lines = (b'{"event_id": 1, "type": "a"}', b'{"type": "a", "event_id": "1"}', b'{"event_id": 1, "type": "b"}')
    assert page_table("acme", page(*lines), NOW)["type"].to_pylist() == ["a", "b"]


def test_a_page_without_lines_is_an_empty_table() -> None:
    assert page_table("acme", page(), NOW).num_rows == 0
