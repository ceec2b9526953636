"""Only what a listing says rules a transfer out (docs/guarantees.md#sent-at-most-once)."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest

from outbound_transfer.client.drivers import drive
from outbound_transfer.protocol import errors
from outbound_transfer.protocol.decoding import decode_page
from outbound_transfer.protocol.flows import find_sent
from outbound_transfer.protocol.messages import Call, Operation, Response, decode_response
from outbound_transfer.protocol.models import Transfer

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
WANTED = ("report", ("ann@example.com",))
ROW: dict[str, Any] = {
    "id": "sent",
    "status": "pending",
    "subject": "Report",
    "recipients": [{"email": "ann@example.com"}],
    "sent_at": "2026-01-31T12:30:00Z",
}
OTHER = {**ROW, "id": "other", "subject": "Other"}
OLD = {**OTHER, "sent_at": "2026-01-30T12:00:00Z"}


def search(
    *pages: list[Any], cursors: list[Any] | None = None, name: str = "a.csv", read: Any = ROW, **options: Any
) -> Transfer | None:
    """Search pages of raw rows; the transfer ``sent`` has one file, ``name`` of 3 bytes."""
    cursors = cursors or [*range(1, len(pages)), None]

    def perform(call: Call[Any]) -> Any:
        if call.operation is Operation.LIST:
            at = int(call.params.get("cursor", 0))
            cursor = None if cursors[at] is None else str(cursors[at])
            body = {"data": pages[at], "next_cursor": cursor}
        elif call.path.endswith("/sent"):
            body = {**read, "files": [{"id": "f", "name": name, "size": 3}]}
        else:
            return decode_response(call, Response(404, {}, b'{"error": "not_found", "message": ""}'))
        return decode_response(call, Response(200, {}, json.dumps(body).encode()))

    return drive(find_sent(WANTED, **{"names": ("a.csv",), "since": NOON, **options}), perform)


@pytest.mark.parametrize("status", ["pending", "partial", "complete", "canceled", "expired", "frozen"])
def test_it_is_found_on_any_page_whatever_became_of_it_and_however_it_is_written(status: str) -> None:
    row = {**ROW, "status": status, "subject": " REPORT", "recipients": [{"email": "Ann@Example.com"}]}
    found = search([OTHER, {**OTHER, "recipients": [{"email": "bob@example.com"}]}], [row], read=row)
    assert found is not None
    assert found.id == "sent"


@pytest.mark.parametrize(
    ("names", "is_found"), [(("a.csv",), True), (("a.csv", "b.csv"), True), (None, True), (("b.csv", "c.csv"), False)]
)
def test_a_file_in_common_is_enough(names: Any, is_found: bool) -> None:
    assert (search([ROW], names=names) is not None) is is_found


@pytest.mark.parametrize("row", [None, 7, {}, {**ROW, "id": None}, {**ROW, "id": 7}, {**ROW, "id": "\ud800"}], ids=repr)
def test_an_unreadable_row_that_may_be_the_one_fails_the_search(row: Any) -> None:
    with pytest.raises(errors.MalformedResponse, match="may be this very delivery"):
        search([OTHER, row])


@pytest.mark.parametrize(
    "changes", [{"subject": "Other"}, {"recipients": [{"email": "bob@example.com"}]}, {"sent_at": OLD["sent_at"]}]
)
def test_what_can_be_read_of_a_row_rules_it_out(changes: dict[str, Any]) -> None:
    assert search([{**ROW, "id": 7, **changes}]) is None


@pytest.mark.parametrize("changes", [{"subject": 7}, {"recipients": [{"email": 7}]}, {"status": None}, {"message": 7}])
def test_an_unreadable_row_is_fetched_by_its_id(changes: dict[str, Any]) -> None:
    assert search([{**ROW, **changes}])
    with pytest.raises(errors.MalformedResponse, match="may be this very delivery"):
        search([{**ROW, **changes}], read={**ROW, "message": 7})


@pytest.mark.parametrize("recipients", [[], [{"email": ""}], [{"email": "Ann <ann@example.com>"}]])
def test_recipients_that_a_row_does_not_name_are_unknown(recipients: list[Any]) -> None:
    assert search([{**ROW, "recipients": recipients}])


@pytest.mark.parametrize("sent_at", ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2026-01-31", None])
def test_an_implausible_time_is_unknown(sent_at: str | None) -> None:
    assert search([{**ROW, "sent_at": sent_at}])


def test_a_time_without_an_offset_may_be_of_any_zone() -> None:
    assert search([{**ROW, "sent_at": "2026-01-31T00:30:00"}])
    assert search([{**ROW, "sent_at": "2026-01-30T20:00:00"}]) is None


def test_an_old_time_above_a_recent_one_is_wrong() -> None:
    old = {**ROW, "sent_at": OLD["sent_at"]}
    assert search([old, OTHER])
    assert search([OTHER, old]) is None


def test_only_many_old_rows_end_the_search() -> None:
    assert search([OLD] * 24, [ROW])
    assert search([OLD] * 25, [ROW]) is None
    assert search([{**OLD, "sent_at": None}] * 50, [ROW])
    assert search([*[OLD] * 30, OTHER], [ROW])


def test_a_cycle_of_cursors_proves_nothing() -> None:
    requests: list[object] = []
    bodies = [b'{"data": [], "next_cursor": "x"}', b'{"data": [], "next_cursor": "y"}']

    def perform(call: Call[Any]) -> Any:
        requests.append(call)
        return decode_response(call, Response(200, {}, bodies[len(requests) % 2]))

    with pytest.raises(errors.MalformedResponse, match="does not end"):
        drive(find_sent(WANTED, ("a.csv",), NOON), perform)
    assert len(requests) == 3


def test_an_id_that_leads_to_another_transfer_proves_nothing() -> None:
    assert search([ROW], read={**ROW, "subject": "Other"})


def test_names_are_compared_without_case_and_composition() -> None:
    name = "R\u00e9sum\u00e9.CSV"
    assert search([ROW], name=name, names=(unicodedata.normalize("NFD", name).lower(),))


def test_sizes_ask_for_exactly_these_files() -> None:
    assert search([ROW], sizes={"A.csv": 3}, names=None)
    assert search([ROW], sizes={"a.csv": 4}) is None
    assert search([ROW], sizes={"a.csv": 3, "b.csv": 3}) is None


def test_no_representation_of_a_row_shows_personal_data() -> None:
    page = decode_page(json.dumps({"data": [{**ROW, "message": 7}], "next_cursor": None}).encode())
    (row,) = page.unreadable
    assert (row.subject, row.addresses, row.sent_at) == ("Report", ("ann@example.com",), ROW["sent_at"])
    for shown in (repr(row), str(row), repr(page), repr(row.__rich_repr__())):
        assert "Report" not in shown
        assert "ann@" not in shown


def test_a_listing_of_several_pages_whose_rows_have_no_ids_ends_the_search() -> None:
    """It is read again for what was sent meanwhile, and nothing says where that ends."""
    nameless = {**OTHER, "id": None}
    with pytest.raises(errors.MalformedResponse, match="is another each time"):
        search([nameless], [nameless])
