"""Listings of sent transfers of which some part is bent, read by the search for a transfer that was sent before.

The flow is driven over raw responses, so thousands of cases take seconds. A part that is bent into another readable
value (another subject, an older time with an offset, an empty page) is a wrong statement: no search can notice it.

The judge knows whether the listing holds the sought transfer. If it does, the search finds it or fails, and never
concludes that it was not sent. If it holds only others' rows, whose readable parts show it, the search finds nothing.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import pytest

from outbound_transfer.client.drivers import drive
from outbound_transfer.protocol import flows
from outbound_transfer.protocol.errors import CallError
from outbound_transfer.protocol.flows import find_sent
from outbound_transfer.protocol.messages import Call, Operation, Response, decode_response

SINCE: Final = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
WANTED: Final = ("report", ("ann@example.com", "bob@example.com"))
NAMES: Final = ("a.csv",)


class _Absent(Enum):
    """Identical in each process, as an object of one's own would not be."""

    MISSING = "missing"


#: Stands for a field that is missing.
MISSING: Final = _Absent.MISSING

WRONG_TYPES: Final = (7, -1, 1.5, True, False, [], {}, [None], [7], [[]], {"a": 1}, 10**400)
UNREADABLE_TEXTS: Final = ("", " ", "\ud800", "half \udfff")

#: What a field of the sought row is bent into.
ROW_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "id": (MISSING, None, *WRONG_TYPES, *UNREADABLE_TEXTS, "..", "/", "other-0", "nobody's", "a b"),
    "status": (MISSING, None, *WRONG_TYPES, *UNREADABLE_TEXTS, "frozen", "draft"),
    "subject": (MISSING, None, *WRONG_TYPES, *UNREADABLE_TEXTS, " REPORT "),
    "recipients": (
        *(MISSING, None, *WRONG_TYPES, *UNREADABLE_TEXTS, "ann@example.com", [{}], [{"email": None}], [{"email": ""}]),
        *([{"email": 7}], [{"email": "\ud800@example.com"}], [{"email": "ann"}], [{"email": "Ann <ann@example.com>"}]),
        *([{"email": "ann@example.com"}, None], [{"email": "a@example.com; b@example.com"}]),
    ),
    "sent_at": (
        *(MISSING, None, *WRONG_TYPES, *UNREADABLE_TEXTS, "yesterday", "2026-01-31", "0001-01-01T00:00:00Z"),
        *("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "1769864400", 1769864400),
        *("2026-01-31T08:00:00", "2026-01-30T23:00:00", "2026-02-01T02:00:00"),
    ),
    "message": (7, [], "\ud800"),
    "expires_at": (MISSING, None, 7, "\ud800"),
    "files": (None, [], 7, [None]),
}

#: What the whole row, the cursor and the rows of a page are bent into. An empty list of rows is a statement.
ROWS: Final = (None, *WRONG_TYPES, *UNREADABLE_TEXTS, {"id": "sought"})
CURSORS: Final = (MISSING, *WRONG_TYPES, "", " ", "\ud800", "nowhere")
DATA: Final = (MISSING, None, *(each for each in WRONG_TYPES if each != []), "", "text")

#: How the sought transfer is read by itself.
READS: Final = ("as documented", "missing", "malformed", "without files")


@dataclass(frozen=True)
class Bend:
    """A listing with a bent part.

    :ivar page: on which the row is: of two pages, or the only one.
    :ivar position: of the row on its page.
    :ivar rows: fields of the row and what they become, or the whole row under "row".
    :ivar envelope: the same for the page.
    :ivar is_sought: whether the row is of the sought transfer; otherwise it is an old one of somebody else's.
    """

    page: str
    position: int
    read: str
    row: tuple[tuple[str, Any], ...] = ()
    envelope: tuple[tuple[str, Any], ...] = ()
    is_sought: bool = True


def bends() -> Iterator[Bend]:
    """Yield each part with each value, on each page and at each position, and each two fields of a row together."""
    places = list(itertools.product(("only", "first", "second"), (0, 1, 2), READS))
    single = [((name, value),) for name, values in ROW_VALUES.items() for value in values]
    whole = [(("row", value),) for value in ROWS]
    for page, position, read in places:
        yield from (Bend(page, position, read, row) for row in (*single, *whole))
        yield from (Bend(page, position, read, envelope=(("next_cursor", value),)) for value in CURSORS)
        yield from (Bend(page, position, read, envelope=(("data", value),)) for value in DATA)
    for (left,), (right,) in itertools.combinations(single, 2):
        if left[0] != right[0]:
            yield from (Bend(page, 1, "as documented", (left, right)) for page in ("only", "first", "second"))


def others_bends() -> Iterator[Bend]:
    """Yield listings without the sought transfer: a row of another subject, other recipients and an old time, bent."""
    for page, position in itertools.product(("only", "first", "second"), (0, 1, 2)):
        for name, values in ROW_VALUES.items():
            # A bent id hides nothing either, because the rest of the row rules it out.
            yield from (Bend(page, position, "malformed", ((name, value),), is_sought=False) for value in values)


def wrong(bend: Bend) -> str:
    """Search the listing; return what is wrong with the conclusion."""
    try:
        found = drive(find_sent(WANTED, NAMES, SINCE), _service(bend))
    except CallError as error:
        return "" if bend.is_sought else f"fails because of another's row: {error}"
    if bend.is_sought:
        return "concludes that the transfer was not sent" if found is None else ""
    return f"takes '{found.id}' for the transfer" if found else ""


def _row(transfer_id: str, subject: str, *addresses: str, sent_at: str) -> dict[str, Any]:
    return {
        "id": transfer_id,
        "status": "complete",
        "subject": subject,
        "recipients": [{"email": address, "name": "N", "picked_up_at": None} for address in addresses],
        "expires_at": "2026-03-01T00:00:00Z",
        "sent_at": sent_at,
        "message": None,
    }


def _service(bend: Bend) -> Callable[[Call[Any]], Any]:
    if bend.is_sought:
        row = _row("sought", "Report", *WANTED[1], sent_at="2026-01-31T13:00:00Z")
    else:
        row = _row("theirs", "Theirs", "eve@example.com", sent_at="2026-01-30T13:00:00Z")
    read = copy.deepcopy(row)
    bent = _bent(row, bend.row)
    above = [_row(f"other-{n}", "Other", "o@example.com", sent_at=f"2026-01-31T14:0{9 - n}:00Z") for n in range(2)]
    pages = {None: {"data": list(above), "next_cursor": None if bend.page == "only" else "2"}}
    if bend.page != "only":
        pages["2"] = {"data": list(above), "next_cursor": None}  # type: ignore[index]
    cursor = "2" if bend.page == "second" else None
    page = pages[cursor]
    page["data"].insert(bend.position, bent)  # type: ignore[union-attr]
    pages[cursor] = _bent(page, bend.envelope)

    def perform(call: Call[Any]) -> Any:
        if call.operation is Operation.LIST:
            cursor = call.params.get("cursor")
            body = pages.get(cursor)  # type: ignore[call-overload]
            return decode_response(call, _response(body, error=(400, "invalid_request")))
        name = call.path.rpartition("/")[2]
        if name == read["id"]:
            return decode_response(call, _response(_read(read, bend.read)))
        other = {**above[0], "files": [{"id": "f", "name": "o.csv", "size": 1}]} if name == "other-0" else None
        return decode_response(call, _response(other))

    return perform


def _bent(given: dict[str, Any], changes: tuple[tuple[str, Any], ...]) -> Any:
    for name, value in changes:
        if name == "row":
            return value
        given = {**given, name: value} if value is not MISSING else {k: v for k, v in given.items() if k != name}
    return given


def _read(transfer: dict[str, Any], read: str) -> Any:
    if read == "missing":
        return None
    if read == "malformed":
        return {**transfer, "message": 7}
    return {**transfer, "files": [] if read == "without files" else [{"id": "f", "name": "a.csv", "size": 3}]}


def _response(body: Any, error: tuple[int, str] = (404, "not_found")) -> Response:
    if body is None:
        return Response(error[0], {}, json.dumps({"error": error[1], "message": "m"}).encode())
    return Response(200, {}, json.dumps(body).encode())


def wrongs(all_bends: Iterable[Bend]) -> list[tuple[Bend, str]]:
    return [(bend, said) for bend in all_bends if (said := wrong(bend))]


@pytest.mark.slow
def test_no_bent_listing_shows_that_nothing_was_sent() -> None:
    assert wrongs(bends())[:5] == []


def test_no_bent_old_row_of_another_stops_a_delivery() -> None:
    assert wrongs(others_bends())[:5] == []


def test_the_bends_find_a_time_that_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "_MIN_SENT_AT", 0.0)
    assert any(map(wrong, bends()))
