"""Undocumented forms of transfers: an invalid one never hides another."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol.decoding import decode_page, decode_transfer

GOOD = {"id": "good", "status": "pending", "subject": "S", "recipients": [{"email": "a@b.c"}], "files": []}

POISONED = [
    {**GOOD, "subject": None},
    {**GOOD, "subject": 7},
    {**GOOD, "status": None},
    {**GOOD, "recipients": None},
    {**GOOD, "recipients": [{"email": 1}]},
    {**GOOD, "recipients": [{"email": "a@b.c", "name": 7}]},
    {**GOOD, "sent_at": 12},
    {**GOOD, "id": None},
    {**GOOD, "id": 7},
    {**GOOD, "id": "half\ud800"},
    {"id": "only"},
    None,
    7,
    [],
    "text",
]

#: As they are in JSON, and what becomes of them.
TEXTS = [
    (r"half \ud800", "half \ufffd"),
    (r"\udc00 half", "\ufffd half"),
    (r"\ud83d\ude00 whole", "\U0001f600 whole"),
    (r"\udc00\ud83d", "\ufffd\ufffd"),
    (b"\xff", "\ufffd"),
    (b"\xed\xa0\x80", None),
    ("tab\tand \x01", "tab\tand \x01"),
]


@pytest.mark.parametrize("poison", POISONED, ids=repr)
def test_an_invalid_row_is_reported_and_hides_no_other(poison: Any) -> None:
    body = json.dumps({"data": [poison, GOOD, poison], "next_cursor": "c"}).encode()
    page = decode_page(body)
    assert [transfer.id for transfer in page.data] == ["good"]
    assert page.next_cursor == "c"
    assert [row.position for row in page.unreadable] == [0, 2]
    assert {row.id for row in page.unreadable} <= {"good", "only", ""}
    assert all(row.reason for row in page.unreadable)


@pytest.mark.parametrize(("text", "becomes"), TEXTS, ids=repr)
def test_invalid_unicode_is_replaced(text: str | bytes, becomes: str | None) -> None:
    row = b'{"id": "t", "status": "pending", "subject": "' + (text.encode() if isinstance(text, str) else text) + b'"}'
    page = decode_page(b'{"data": [' + row + b"," + json.dumps(GOOD).encode() + b'], "next_cursor": null}')
    for transfer in (decode_transfer(row), page.data[0]):
        assert transfer.subject == becomes or becomes is None
        assert transfer.subject.encode()
    assert page.data[1].id == "good"


def test_a_very_long_number_affects_no_other_row() -> None:
    body = (
        b'{"data": ['
        + json.dumps(GOOD).encode()[:-1]
        + b', "n": '
        + b"9" * 9_000
        + b', "s": "\\ud800"}], "next_cursor": null}'
    )
    assert [transfer.id for transfer in decode_page(body).data] == ["good"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"7",
        b'{"data": null}',
        b'{"data": [], "next_cursor": 7}',
        b'{"data": []}',
        rb'{"data": [], "next_cursor": "\ud800"}',
    ],
)
def test_an_invalid_page_is_rejected(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_page(body)


def test_an_id_is_not_repaired_into_another() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_transfer(b'{"id": "\\ud800", "status": "pending", "subject": "S"}')


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
fields = st.sampled_from(["id", "status", "subject", "recipients", "files", "sent_at", "expires_at", "message"])


@given(st.lists(st.dictionaries(fields, anything).map(lambda wrong: {**GOOD, **wrong}) | anything, max_size=8))
def test_every_row_is_a_transfer_or_reported(rows: list[Any]) -> None:
    page = decode_page(json.dumps({"data": [*rows, GOOD], "next_cursor": None}).encode())
    assert page.data[-1].id == "good"
    assert len(page.data) + len(page.unreadable) == len(rows) + 1
    msgspec.json.encode(page)
