"""Each endpoint as a call: what goes out, and how the response is decoded (service-api.md, Transfer interface)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.endpoints import AttachResult
from outbound_transfer.protocol.errors import InvalidDelivery, MalformedResponse
from outbound_transfer.protocol.messages import Api, Call, Operation, Response, Upload, decode_response
from outbound_transfer.protocol.models import File, Transfer, TransferPage, build_new_transfer
from outbound_transfer.protocol.retry_rules import REPEAT_EFFECTS

UPLOAD = Upload("a.txt", 3, lambda: iter([b"abc"]))
NEW = build_new_transfer(subject="S", recipients={"email": "a@example.com", "phone": "5550199"}, message="M")

#: The endpoints table: call, operation, method, path, parameters.
ENDPOINTS = [
    (endpoints.create_transfer(NEW), Operation.CREATE, "POST", "/v1/transfers", {}),
    (endpoints.list_transfers(), Operation.LIST, "GET", "/v1/transfers", {"limit": 100, "status": "all"}),
    (
        endpoints.list_transfers(limit=7, status="pending", cursor="c&d"),
        Operation.LIST,
        "GET",
        "/v1/transfers",
        {"limit": 7, "status": "pending", "cursor": "c&d"},
    ),
    (endpoints.get_transfer("t"), Operation.GET, "GET", "/v1/transfers/t", {}),
    (endpoints.attach_file("t", UPLOAD), Operation.ATTACH, "POST", "/v1/transfers/t/files", {}),
    (endpoints.list_files("t"), Operation.LIST_FILES, "GET", "/v1/transfers/t/files", {}),
    (endpoints.get_file("t", "f"), Operation.GET_FILE, "GET", "/v1/transfers/t/files/f", {}),
    (endpoints.remove_file("t", "f"), Operation.REMOVE, "DELETE", "/v1/transfers/t/files/f", {}),
    (endpoints.discard_transfer("t"), Operation.DISCARD, "DELETE", "/v1/transfers/t", {}),
    (endpoints.send_transfer("t"), Operation.SEND, "POST", "/v1/transfers/t/send", {}),
    (endpoints.read_events(), Operation.EVENTS, "GET", "/v1/events", {"cursor": 0, "limit": 1000}),
    (endpoints.read_events(cursor=5, limit=9), Operation.EVENTS, "GET", "/v1/events", {"cursor": 5, "limit": 9}),
]

BY_ID = {
    "get": lambda i: endpoints.get_transfer(i),
    "attach": lambda i: endpoints.attach_file(i, UPLOAD),
    "list_files": lambda i: endpoints.list_files(i),
    "get_file": lambda i: endpoints.get_file("t", i),
    "remove": lambda i: endpoints.remove_file("t", i),
    "discard": lambda i: endpoints.discard_transfer(i),
    "send": lambda i: endpoints.send_transfer(i),
}

TRANSFER = {
    "id": "t",
    "status": "draft",
    "subject": "S",
    "message": None,
    "recipients": [{"email": "a@example.com", "name": "a", "picked_up_at": None}],
    "files": [{"id": "f", "name": "a.txt", "size": 3}],
    "expires_at": "2026-01-01T00:00:00Z",
    "sent_at": None,
}
FILE = {"id": "f", "name": "a.txt", "size": 3}


def result(call: Call[Any], body: Any, status: int = 200, **more: Any) -> Any:
    return decode_response(
        call, Response(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode(), **more)
    )


@pytest.mark.parametrize(
    ("call", "operation", "method", "path", "params"), ENDPOINTS, ids=[endpoint[1].value for endpoint in ENDPOINTS]
)
def test_the_request_of_each_endpoint(
    call: Call[Any], operation: Operation, method: str, path: str, params: dict[str, Any]
) -> None:
    assert (call.operation, call.method, call.path, dict(call.params)) == (operation, method, path, params)
    assert call.api is (Api.FEED if operation is Operation.EVENTS else Api.TRANSFER)
    assert (call.body is not None) == (operation is Operation.CREATE)
    assert (call.upload is not None) == (operation is Operation.ATTACH)
    assert (call.reconciliation is not None) == (operation in (Operation.SEND, Operation.CREATE))


def test_every_operation_has_an_endpoint_and_an_effect() -> None:
    assert {endpoint[1] for endpoint in ENDPOINTS} == set(Operation) == set(REPEAT_EFFECTS)


def test_the_body_of_a_create_holds_what_was_given_and_no_more() -> None:
    body = json.loads(endpoints.create_transfer(NEW).body or b"")
    assert body == {"subject": "S", "message": "M", "recipients": [{"email": "a@example.com", "phone": "5550199"}]}


def test_a_call_shows_no_secret() -> None:
    call = endpoints.create_transfer(NEW)
    assert call.secrets == ("5550199",)
    assert "5550199" not in repr(call)


def test_probing_the_feed_cannot_succeed_and_so_spends_nothing() -> None:
    probe = endpoints.probe_feed()
    assert (probe.path, dict(probe.params), probe.api) == ("/v1/events", {"cursor": "none"}, Api.FEED)


# --------------------------------------------------------------------------------------------------------- hostile ids


@pytest.mark.parametrize("operation", BY_ID)
@pytest.mark.parametrize("wrong", ["", ".", "..", "...", None, 7, b"t", "\ud800"], ids=repr)
def test_an_invalid_id_is_rejected(operation: str, wrong: Any) -> None:
    with pytest.raises(InvalidDelivery, match="not an id"):
        BY_ID[operation](wrong)


@given(st.text())
def test_no_id_reaches_another_path(some_id: str) -> None:
    try:
        path = endpoints.get_file(some_id, some_id).path
    except InvalidDelivery:
        return
    parts = path.split("/")
    assert parts[:3] + parts[4:5] == ["", "v1", "transfers", "files"]
    assert len(parts) == 6
    assert path.isascii()
    assert not {"?", "#", " ", "\\"} & set(path)
    assert parts[3].strip(".")


# --------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(("operation", "status"), [("get", "draft"), ("send", "pending")])
def test_a_transfer_is_read(operation: str, status: str) -> None:
    transfer = result(BY_ID[operation]("t"), TRANSFER | {"new_field": {"a": [1]}, "status": status})
    assert isinstance(transfer, Transfer)
    assert (transfer.id, transfer.status, transfer.files) == ("t", status, (File("f", "a.txt", 3),))


def test_a_response_with_another_transfer_is_rejected() -> None:
    with pytest.raises(MalformedResponse, match="another transfer"):
        result(endpoints.get_transfer("other"), TRANSFER)


def test_a_send_that_returns_a_draft_is_rejected() -> None:
    with pytest.raises(MalformedResponse, match="is a draft"):
        result(endpoints.send_transfer("t"), TRANSFER)


@pytest.mark.parametrize("status", ["unknown", "scheduled", "", "DRAFT"])
def test_a_status_outside_the_list_is_read_like_any(status: str) -> None:
    assert result(endpoints.get_transfer("t"), TRANSFER | {"status": status}).status == status


@pytest.mark.parametrize(("next_cursor", "read"), [(None, None), ("c", "c")])
def test_a_page_of_the_listing_is_read(next_cursor: str | None, read: str | None) -> None:
    without_files = {name: value for name, value in TRANSFER.items() if name != "files"}
    page = result(endpoints.list_transfers(), {"data": [without_files], "next_cursor": next_cursor, "total": 1})
    assert isinstance(page, TransferPage)
    assert page.next_cursor == read
    assert page.data[0].files is None


@pytest.mark.parametrize(("status", "is_new"), [(201, True), (200, False)])
@pytest.mark.parametrize("after_in_doubt_attempt", [True, False])
def test_whose_file_was_attached(status: int, is_new: bool, after_in_doubt_attempt: bool) -> None:
    attached = result(endpoints.attach_file("t", UPLOAD), FILE, status, after_in_doubt_attempt=after_in_doubt_attempt)
    assert attached == AttachResult(File("f", "a.txt", 3), is_new, after_in_doubt_attempt)


def test_files_are_read() -> None:
    assert result(endpoints.list_files("t"), {"data": [FILE, FILE | {"color": 1}]}) == (File(**FILE), File(**FILE))
    assert result(endpoints.get_file("t", "f"), FILE) == File(**FILE)


@pytest.mark.parametrize("status", [200, 202, 204])
@pytest.mark.parametrize("call", [endpoints.remove_file("t", "f"), endpoints.discard_transfer("t")])
def test_a_removal_has_no_result(call: Call[None], status: int) -> None:
    assert result(call, b"", status) is None


def test_a_send_is_reconciled_by_reading_the_transfer() -> None:
    reconciliation = endpoints.send_transfer("t").reconciliation
    assert reconciliation is not None
    assert (reconciliation.query.method, reconciliation.query.path) == ("GET", "/v1/transfers/t")
    for status in ("pending", "partial", "complete", "canceled", "expired", "unknown", "new"):
        transfer = result(reconciliation.query, TRANSFER | {"status": status})
        assert reconciliation.applied_result(transfer) is transfer
    assert reconciliation.applied_result(result(reconciliation.query, TRANSFER)) is None


READS = [
    (call, operation)
    for call, operation, *_ in ENDPOINTS
    if operation not in (Operation.REMOVE, Operation.DISCARD, Operation.EVENTS)
]
WRONG = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"<html>",
    b"\xff\xfe",
    b'"t"',
    b'{"data": {}}',
    b'{"data": [1], "next_cursor": 1}',
    b'{"id": 5',
    b"[" * 200_000,
    b'{"x":' * 200_000,
]


@pytest.mark.parametrize("body", WRONG, ids=lambda body: repr(body[:12]))
@pytest.mark.parametrize(("call", "operation"), READS, ids=[operation.value for _, operation in READS])
def test_a_malformed_body_is_rejected(call: Call[Any], operation: Operation, body: bytes) -> None:
    with pytest.raises(MalformedResponse, match=f"^{operation.value}: the response is not as documented") as refused:
        result(call, body)
    assert refused.value.in_doubt


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", None), ("status", 1), ("recipients", {}), ("recipients", [{"name": "a"}]), ("files", [{"id": "f"}])],
)
def test_a_field_of_another_type_is_rejected(field: str, value: Any) -> None:
    with pytest.raises(MalformedResponse):
        result(endpoints.get_transfer("t"), TRANSFER | {field: value})
