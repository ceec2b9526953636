"""Two events of one id are the same if their content is, however it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.events import Event, read_line
from outbound_transfer.store.events import content_digest, find_conflicts


def parse(text: str, line: int = 1) -> Event:
    found = read_line(text.encode(), line)
    assert isinstance(found, Event)
    return found


def line(data: str = "{}", **fields: Any) -> str:
    rest = json.dumps({"event_id": "e", "type": "t", "timestamp": "2026-01-01", **fields})[1:]
    return f'{{"data": {data}, {rest}'


SAME = [
    ('{"a": 1, "b": [2, {"c": 3, "d": 4}]}', '{"b":[2,{"d":4,"c":3}],"a":1}'),
    ("[1.50, 1e2, -0, 0.0, 12300]", "[1.5, 100, 0, 0, 1.23e4]"),
    ('"\\u00e9"', '"é"'),
    ("[" * 498 + "]" * 498, "[ " * 498 + "]" * 498),
    ('{"a":' * 498 + "1" + "}" * 498, '{"a": ' * 498 + "1.0" + "}" * 498),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_values(one: str, other: str) -> None:
    assert content_digest(parse(line(one))) == content_digest(parse(line(other)))


OTHERS = [
    "1", "true", "0", "false", "null", '"1"', '"null"', "[]", "{}", '{"a": 1}', '{"a": true}', '[["a", 1]]', "10",
    "[1]",
]  # fmt: skip


def test_other_values_and_fields_are_another_event() -> None:
    fields: list[dict[str, Any]] = [{"type": "u"}, {"timestamp": "2026-01-02"}, {"timestamp": None}, {"more": 1}]
    lines = [line(data) for data in OTHERS] + [line(**other) for other in fields]
    damaged = Event("e", "t", "2026-01-01", "{", None, 0)
    assert len({content_digest(event) for event in (*map(parse, lines), damaged)}) == len(lines) + 1


SCALARS = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)))
def test_an_event_that_is_stored_raw_is_the_same(value: Any) -> None:
    received = parse(line(json.dumps(value)))
    raw = Event("e", "t", received.timestamp, None, None, 0, line(json.dumps(value)))
    assert content_digest(raw) == content_digest(received)


def test_conflicts_are_with_the_known_or_the_first() -> None:
    first, again, other, known = parse(line("1"), 1), parse(line("1.0"), 2), parse(line("2"), 3), parse(line("2"), 0)
    assert find_conflicts([first, again, other], {}) == [other]
    assert find_conflicts([first, again, other], {"e": known}) == [first, again]
