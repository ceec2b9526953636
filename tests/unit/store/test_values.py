"""From pages to rows, counts, names: what needs no database."""

from __future__ import annotations

from datetime import timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.events import Event, Page, RejectedLine
from outbound_transfer.client.settings import Settings
from outbound_transfer.store.rows import format_timestamp, read_event_time
from outbound_transfer.transfers.feed_ingest import MAX_TYPE_LENGTH, MAX_TYPES, OTHER_TYPES, IngestProgress

EAST = timezone(timedelta(hours=14))


INSTANTS = {
    "2026-01-01T00:00:00Z": "2026-01-01T00:00:00.000000Z", "20260101T000000Z": "2026-01-01T00:00:00.000000Z",
    "2026-01-01T00:00:00.5+02:00": "2025-12-31T22:00:00.500000Z", "2026-W01-4T12": "2026-01-01T12:00:00.000000Z",
    "2026-01-01T00:00:00.123456789Z": "2026-01-01T00:00:00.123456Z",
    "2026-01-01 00:00:00": "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00,1+00:00": "2026-01-01T00:00:00.100000Z",
    "9998-12-31T23:59:59Z": "9998-12-31T23:59:59.000000Z", "2026-12-31T23:59:60Z": "2027-01-01T00:00:00.000000Z",
    "2026-12-31t23:59:60.5z": "2027-01-01T00:00:00.500000Z",
}  # fmt: skip
#: Among them, two that may be in no year that a driver can show, in a session's own time zone.
NO_INSTANTS = (
    None, "", "now", "12:00", "2026-01-01", "2026-W01-4", "2026-001T00:00:00Z", "2026-01-01x00:00:00Z", "1767225600",
    "1767225600.5", "P1D", "2026-01-01T00:00:00/2026-01-02T00:00:00", "2026-02-30T00:00:00Z",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00.000Z",
    "0000-01-01T00:00:00Z", "12026-01-01T00:00:00Z", "2026-12-31T23:60:00Z", "2026-01-01T24:00:00Z",
    "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+99:99", "2026-366T00:00:00", "12:", "1:", "9" * 10_000, "{}",
)  # fmt: skip


def test_a_timestamp_is_an_instant_only_where_it_says_one() -> None:
    for timestamp, moment in {**INSTANTS, **dict.fromkeys(NO_INSTANTS)}.items():
        found = read_event_time(timestamp)
        assert (found and format_timestamp(found)) == moment, timestamp


@given(
    st.text()
    | st.text("0123456789-:.,TWZ+ /P\u0662", max_size=30)
    | st.from_regex(r"[0-9]{4}-?[0-9W]{2}-?[0-9]{2}[T ]?[0-9:]{0,8}[.]?[0-9]{0,9}(Z|[+-][0-9:]{0,6})?")
)
def test_no_timestamp_makes_an_error(timestamp: str) -> None:
    found = read_event_time(timestamp)
    assert found is None or (len(format_timestamp(found)) == 27 and found.astimezone(EAST))


def test_a_feed_is_named_by_its_account() -> None:
    acme = ("https://Acme.Example.com/", "https://acme.example.com:443", "http://acme.example.com:80/")
    others = {"http://127.0.0.1:8085/": "127.0.0.1:8085", "https://proxy.example.com/acme/": "proxy.example.com/acme"}
    for address, feed in {**dict.fromkeys(acme, "acme.example.com"), **others, "http://[::1]:85/": "[::1]:85"}.items():
        assert Settings(address, "key").account == feed


def _page(cursor: int, types: list[str], *, has_more: bool = True) -> Page:
    events = tuple(Event(str(i), kind, None, None, None, i) for i, kind in enumerate(types, 1))
    return Page(cursor, cursor + 10, has_more, events, (RejectedLine(9, b"x", "y"),))


def test_progress_counts_and_survives_a_deferral() -> None:
    first = IngestProgress().after(_page(7, ["a", "b", "a"]), new_events=2)
    second = msgspec.convert(msgspec.to_builtins(first), IngestProgress)
    second = second.after(_page(17, ["a"], has_more=False), new_events=1)
    assert second.summary() == {
        "pages": 2, "events": 4, "new_events": 3, "rejected": 2, "cursor_from": 7, "cursor_to": 27, "has_more": False,
        "types": {"a": 3, "b": 1},
    }  # fmt: skip


def test_types_cannot_swell_the_counts() -> None:
    counts = IngestProgress().after(_page(0, [f"{i}{'x' * 1_000}" for i in range(200)]), 200).types
    assert len(counts) == MAX_TYPES + 1
    assert counts[OTHER_TYPES] == 200 - MAX_TYPES
    assert max(map(len, counts)) == MAX_TYPE_LENGTH


@pytest.mark.parametrize(
    "brought", [None, [], {"pages": -1}, {"pages": "1"}, {"cursor": 5}, {"types": {"a": -1}}, {"waited": -1}]
)
def test_progress_restored_after_a_deferral_is_checked(brought: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(brought, IngestProgress)
