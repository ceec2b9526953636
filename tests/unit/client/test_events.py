"""Reading a page of the event feed (service-api.md, R40 to R46)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.errors import MalformedResponse
from outbound_transfer.client.events import MAX_CURSOR, MAX_DEPTH, MAX_EVENT_ID_BYTES, Page, read_page

EVENT = {"event_id": "e1", "type": "transfer_sent", "timestamp": "2026-01-01T00:00:00Z", "data": {"a": 1}}


def page(body: bytes, *, cursor: int = 0, **headers: str | None) -> Page:
    given = {"content_type": "application/x-ndjson", "x_next_cursor": "5", "x_has_more": "false", **headers}
    named = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    return read_page(named, body, cursor=cursor)


def line(**fields: Any) -> bytes:
    return json.dumps(EVENT | fields).encode()


# Text with everything that JSON text may hold, Unicode's other line separators above all.
SEPARATORS = ["a\u2028b", "\u2029", "\x85", "\r\n", "\0", "\x1c"]
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(SEPARATORS)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
storable = texts.filter(lambda text: "\0" not in text)
ids = storable.filter(lambda text: 0 < len(text.encode()) <= MAX_EVENT_ID_BYTES)
events = st.fixed_dictionaries(
    {"event_id": ids, "type": storable, "timestamp": storable, "data": values},
    optional={"actor": values, "x\u2028": values},
)


@given(st.lists(events, max_size=8), st.booleans(), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_any_events_round_trip(written: list[dict[str, Any]], ascii_only: bool, end: bytes, last_ended: bool) -> None:
    lines = [json.dumps(event, ensure_ascii=ascii_only).encode() for event in written]
    read = page(end.join(lines) + (end if last_ended and lines else b""))
    assert not read.rejected
    assert [event.line_number for event in read.events] == list(range(1, len(written) + 1))
    for event, as_written in zip(read.events, written, strict=True):
        for name in ("event_id", "type", "timestamp"):
            assert getattr(event, name) == as_written[name]
        assert event.data == json.dumps(as_written["data"], ensure_ascii=ascii_only)
        unnamed = {name: value for name, value in as_written.items() if name not in EVENT}
        assert json.loads(event.extra_fields or "{}") == unnamed


@given(st.lists(st.binary(max_size=30) | events.map(lambda event: json.dumps(event).encode()), max_size=8))
def test_any_bytes_become_events_or_rejected_lines_or_an_error(lines: list[bytes]) -> None:
    body = b"\n".join(lines)
    try:
        read = page(body)
    except MalformedResponse:
        assert not body.endswith(b"\n")
        return
    seen = {event.line_number for event in read.events} | {line.line_number for line in read.rejected}
    whole = body.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert seen == {position for position, line in enumerate(whole, 1) if line.strip(b" \t\r")}
    assert all(rejected.raw == whole[rejected.line_number - 1] for rejected in read.rejected)


@given(st.lists(events, min_size=1, max_size=4), st.data())
def test_a_page_cut_anywhere_is_refused_unless_cut_between_lines(written: list[dict[str, Any]], data: Any) -> None:
    body = b"".join(json.dumps(event).encode() + b"\n" for event in written)
    cut = data.draw(st.integers(0, len(body)))
    if cut == 0 or b"\n" in (body[cut - 1 : cut], body[cut : cut + 1]):
        assert len(page(body[:cut]).events) == body[: cut + 1].count(b"\n")
    else:
        with pytest.raises(MalformedResponse, match="cut off"):
            page(body[:cut])


def test_values_are_unchanged_to_the_byte() -> None:
    data = '{ "b" : 1.00, "a":1e999, "a":"\\u0000 \\ud800 \\u00e9", "n":' + "9" * 5_000 + " }"
    body = '{"data" : ' + data + ' ,"event_id":"e","type":"t","timestamp":1700000000.50, "x":[ 1 ],"\\ud800":null}'
    (event,) = page(body.encode()).events
    assert event.data == data
    assert event.timestamp == "1700000000.50"
    assert event.extra_fields == '{"x": [ 1 ], "\\ud800": null}'


def test_an_event_id_is_text_or_a_number_as_it_was_written() -> None:
    for written_as in ("1", "12345678901234567890123", '"1"', "1.50"):
        assert page(f'{{"event_id":{written_as},"type":"t"}}'.encode()).events[0].event_id == written_as.strip('"')


def test_missing_and_null_are_distinguished_where_it_matters() -> None:
    bare, nulls = page(b'{"event_id":"a","type":"t"}\n{"event_id":"b","type":"t","timestamp":null,"data":null}').events
    assert (bare.timestamp, bare.data, bare.extra_fields) == (None, None, None)
    assert (nulls.timestamp, nulls.data, nulls.extra_fields) == (None, "null", None)


def test_blank_lines_line_endings_and_a_byte_order_mark_are_not_events() -> None:
    read = page(b"\xef\xbb\xbf" + line() + b"\r\n\r\n  \t\n\n" + line(event_id="e2"))
    assert [(event.event_id, event.line_number) for event in read.events] == [("e1", 1), ("e2", 5)]
    assert not read.rejected


INVALID = (
    b'{"event_id":1,"type":"t","data":NaN}', b'{"event_id":1,"type":"\xff{"}\r',
    b'{"event_id":1,"type":"t","data":"\x01 \\"}"}', b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)  # fmt: skip
CUT_OFF = (
    b"<html>", b'{"event_id":"e', b'{"a":NaN}}', b'{"a":NaN},', b'{"a":[NaN}', b"[NaN]", b'{"a":"}', b'[1, {"a":',
    b'"abc', b"\xe2\x82", b"{}x", b"tru",
)  # fmt: skip


def test_a_last_line_that_is_invalid_is_rejected_and_one_that_is_cut_off_refuses_the_page() -> None:
    for tail in INVALID:
        read = page(line() + b"\n" + tail)
        assert (len(read.events), [rejected.raw for rejected in read.rejected]) == (1, [tail])
    for tail in CUT_OFF:
        with pytest.raises(MalformedResponse, match="cut off"):
            page(line() + b"\n" + tail)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html><body>502</body></html>", "Expecting value"),
        (b"[]", "not an object"),
        (b"12", "not an object"),
        (b'{"type":"t"}', "no event_id"),
        (b'{"event_id":null,"type":"t"}', "no event_id"),
        (b'{"event_id":"","type":"t"}', "no event_id"),
        (b'{"event_id":"\\u0000","type":"t"}', "event_id holds a NUL"),
        (b'{"event_id":"\\ud800","type":"t"}', "event_id holds an unpaired surrogate"),
        (b'{"event_id":{},"type":"t"}', "event_id is neither"),
        (b'{"event_id":true,"type":"t"}', "event_id is neither"),
        (b'{"event_id":"' + b"x" * (MAX_EVENT_ID_BYTES + 1) + b'","type":"t"}', "over 500 bytes"),
        (b'{"event_id":"e"}', "no type"),
        (b'{"event_id":"e","type":7}', "no type"),
        (b'{"event_id":"e","type":"a\\u0000"}', "type holds a NUL"),
        (b'{"event_id":"e","type":"t","timestamp":"\\udfff"}', "timestamp holds an unpaired"),
        (b'{"event_id":"e","type":"t","data":1,"data":2}', 'field "data" twice'),
        (b'{"event_id":"e","type":"t","data":NaN}', "NaN is not JSON"),
        (b'{"event_id":"e","type":"t","data":"\x01"}', "control character"),
        (b'{"event_id":"e","type":"t","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_an_invalid_event_is_rejected_with_the_reason(body: bytes, said: str) -> None:
    read = page(line() + b"\n" + body + b"\r\n" + line(event_id="e2"))
    assert [event.event_id for event in read.events] == ["e1", "e2"]
    (rejected,) = read.rejected
    assert (rejected.line_number, rejected.raw) == (2, body + b"\r")
    assert said in rejected.reason


@pytest.mark.parametrize(
    "headers",
    [
        {"x_next_cursor": None}, {"x_next_cursor": ""}, {"x_next_cursor": "4.0"}, {"x_next_cursor": "-6"},
        {"x_next_cursor": "+6"}, {"x_next_cursor": "0x6"}, {"x_next_cursor": "\u0666"},
        {"x_next_cursor": "6, 6"}, {"x_next_cursor": "2"}, {"x_next_cursor": str(MAX_CURSOR + 1)},
        {"x_next_cursor": "9" * 5_000}, {"x_has_more": None}, {"x_has_more": "maybe"}, {"x_has_more": "1"},
        {"content_type": None}, {"content_type": "text/html"}, {"content_type": "application/json"},
    ],
)  # fmt: skip
def test_a_page_with_invalid_headers_is_rejected(headers: dict[str, str | None]) -> None:
    with pytest.raises(MalformedResponse):
        page(line(), cursor=3, **headers)


def test_headers_may_be_spelled_otherwise_and_a_page_that_has_something_advances_the_cursor() -> None:
    for body, more in ((line(), "false"), (b"{}\n", "false"), (b"", "true")):
        with pytest.raises(MalformedResponse, match="did not advance"):
            page(body, cursor=5, x_has_more=more)
    spelled = {"x_has_more": "True", "content_type": "Application/X-NDJSON; charset=utf-8"}
    read = page(line(), x_next_cursor=str(MAX_CURSOR), **spelled)
    assert (read.next_cursor, read.has_more) == (MAX_CURSOR, True)


@pytest.mark.parametrize(
    ("data", "needs_raw"),
    [
        ('"\\ud83d\\ude00"', False), ('"\\\\u0041"', False), ('{"a":[{"b":1},{"b":2}]}', False),
        ("1.7e308", False), ('"\\ud83d"', True), ('"\\u0000"', True), ('[{"b":1,"b":2}]', True),
        ("-1e400", True), ("1e-300", False), ("1E+00000000000000000005", False), ("1e-20000", True),
        ("[0e-20000]", True), ("0e99999999999", True), ("1." + "1" * 20_000, True),
        ("-0." + "0" * 20_000, True),
    ],
)  # fmt: skip
def test_a_value_that_a_json_column_cannot_store_is_stored_raw(data: str, needs_raw: bool) -> None:
    line = f'{{"event_id":"e","type":"t","data":{data}}}'
    (event,) = page(line.encode() + b"\n").events
    assert event.raw == (line if needs_raw else None)
    assert event.data == data


@pytest.mark.parametrize("value", [b'"\\ud800"', b"", b'"[{"', b'{"a":[]}'])
@pytest.mark.parametrize("depth", [MAX_DEPTH - 3, MAX_DEPTH - 1, MAX_DEPTH, *range(850, 1_000, 10), 20_000])
def test_no_depth_makes_an_error_and_who_calls_does_not_matter(depth: int, value: bytes) -> None:
    body = b'{"event_id":"e","type":"t","data":' + b"[" * depth + value + b"]" * depth + b"}\n"

    def called_deeply(frames: int) -> Page:
        return called_deeply(frames - 1) if frames else page(body + line())

    read = page(body + line())
    assert len(read.events) == (2 if depth + 1 + 2 * (value[:1] == b"{") <= MAX_DEPTH else 1)
    assert len(read.events) + len(read.rejected) == 2
    assert called_deeply(200) == read
