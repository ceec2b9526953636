"""Which error a user gets for which response, and what is never believed."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer import exceptions as errors
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from support.provider import Upload, build_new_transfer
from support.raw_server import header
from support.wire import EVENT_KEY, TRANSFER_KEY, Wire, read_body, refusal, said, transfer

#: service-api.md, R48: what a repeat cannot help; class, and a word of the advice.
FINAL = {
    (400, "invalid_request"): (errors.InvalidRequest, "Correct the field"),
    (401, "invalid_api_key"): (errors.InvalidApiKey, "Check the API key"),
    (403, "api_not_enabled"): (errors.ApiNotEnabled, "administrator must enable"),
    (403, "api_not_permitted"): (errors.ApiNotPermitted, "administrator must allow"),
    (403, "sending_not_permitted"): (errors.SendingNotPermitted, "administrator"),
    (403, "auth_option_not_enabled"): (errors.AuthOptionNotEnabled, "Choose a security option"),
    (403, "no_credit"): (errors.NoCredit, "Buy credit"),
    (404, "not_found"): (errors.NotFound, "use the sending user's key"),
    (409, "recipient_limit_exceeded"): (errors.RecipientLimitExceeded, "split the delivery"),
    (411, "length_required"): (errors.LengthRequired, "proxy"),
    (413, "file_too_large"): (errors.FileTooLarge, "split it or have the limit raised"),
}


@pytest.mark.parametrize(("status", "code"), FINAL)
def test_a_refusal_is_raised_at_once_as_its_class_with_what_to_do(wire, status, code) -> None:
    service = wire(refusal(status, code, "Of the service."))
    kind, advice = FINAL[status, code]
    with pytest.raises(errors.ServiceError) as refused:
        service.hook.get_transfer("t")
    error = pickle.loads(pickle.dumps(refused.value))
    assert type(error) is type(refused.value) is kind
    assert (error.status, error.code, error.in_doubt, str(error)) == (status, code, False, str(refused.value))
    assert "Of the service" in str(error)
    assert advice in str(error)
    assert (len(service.lines), service.sleeps) == (1, [])


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "new_code"), (409, "conflict"), (410, "gone"), (401, "not_found"), (404, "invalid_state")],
)
def test_a_refusal_with_a_code_that_the_service_does_not_document_proves_nothing(
    wire: Callable[..., Wire], status: int, code: str
) -> None:
    """A gateway's JSON looks like the service's: it refuses no key, ends no wait, and says nothing about a send."""
    service = wire(refusal(status, code, "Of somebody."))
    with pytest.raises(errors.MalformedResponse, match=rf"{status} .*{code}: Of somebody") as refused:
        service.hook.get_transfer("t")
    assert refused.value.in_doubt
    assert len(service.lines) > 1


@pytest.mark.parametrize("then", [(401, "invalid_api_key"), (403, "api_not_permitted"), (404, "not_found")])
def test_a_send_that_may_have_been_made_before_stays_in_doubt_until_it_is_read(wire, then) -> None:
    with pytest.raises(errors.ServiceError) as refused:
        wire(refusal(409, "invalid_state"), refusal(*then)).hook.send_transfer("t")
    assert refused.value.in_doubt


def test_only_204_proves_a_removal(wire) -> None:
    service = wire(said(b"<html>"), said({}, "202 Accepted"), said(b"", "204 No Content"))
    service.hook.discard_transfer("t")
    assert len(service.lines) == 3
    wire(b"", refusal(404, "not_found")).hook.remove_file("t", "f")  # the first answer was lost


def test_a_scheduled_transfer_is_not_taken_for_sent(wire) -> None:
    """A person may have scheduled it in the web application."""
    for call in (lambda hook: hook.get_transfer("t"), lambda hook: hook.send_transfer("t")):
        with pytest.raises(errors.MalformedResponse, match="'scheduled', (but has no sent_at|not sent)") as refused:
            call(wire(transfer(status="scheduled", sent_at=None)).hook)
        assert refused.value.in_doubt


READS: dict[str, Callable[[OutboundTransferHook], object]] = {
    "transfer": lambda hook: hook.get_transfer("t"),
    "listing": lambda hook: hook.list_transfers(),
    "files": lambda hook: hook.list_files("t"),
    "file": lambda hook: hook.get_file("t", "f"),
    "events": lambda hook: hook.read_events(),
}
WRONG = [b"", b"null", b"[]", b"{}", b"<html>", b"\xff", b'"t"', b'{"data": {}}', b'{"data": [1], "next_cursor": 1}']


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("body", [*WRONG, b'{"id": 5', b"[" * 200_000, b'{"x":' * 200_000], ids=lambda body: body[:12])
def test_a_body_that_is_not_the_services_is_not_believed(wire: Callable[..., Wire], read: str, body: bytes) -> None:
    with pytest.raises(errors.MalformedResponse):
        READS[read](wire(said(body)).hook)


WRONG_FIELDS = [
    {"id": None}, {"id": "other"}, {"status": 1}, {"recipients": {}}, {"recipients": [{"name": "a"}]},
    {"files": [{"id": "f"}]},
]  # fmt: skip


@pytest.mark.parametrize("fields", WRONG_FIELDS, ids=str)
def test_a_transfer_of_another_shape_or_id_is_not_believed(wire: Callable[..., Wire], fields: dict[str, Any]) -> None:
    with pytest.raises(errors.MalformedResponse, match="a transfer other than" if "other" in fields.values() else "."):
        wire(transfer(**fields)).hook.get_transfer("t")


GATEWAYS = [
    b"",
    b"<html>Sign in</html>",
    b'{"detail": "Not Found"}',
    b'{"error": ""}',
    b"[]",
    b'{"timestamp": "2026-11-28T20:00:00Z", "error": "Not Found", "message": "", "path": "/v1"}',
    b'{"error": "conflict"}',
]


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409])
def test_the_sign_in_page_of_a_proxy_is_not_taken_for_a_refusal(wire: Callable[..., Wire], status: int) -> None:
    undocumented = {401: "invalid_token", 404: "rate_limited"}.get(status)
    answers = [said(body, f"{status} No") for body in GATEWAYS] + [refusal(status, undocumented)] * bool(undocumented)
    for answer in answers:
        assert wire(answer, transfer()).hook.get_transfer("t").status == "pending"


def test_a_status_and_fields_of_tomorrow_are_read(wire: Callable[..., Wire]) -> None:
    seen = wire(transfer(status="scheduled", color={"red": [1]}, files=[{"id": "f", "name": "a", "size": 1, "x": 2}]))
    found = seen.hook.get_transfer("t")
    assert (found.status, [file.name for file in found.files or []]) == ("scheduled", ["a"])


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "GZIP", "identity, gzip"])
def test_a_response_that_could_decompress_without_end_is_not_read(wire: Callable[..., Wire], encoding: str) -> None:
    with pytest.raises(errors.MalformedResponse, match="compressed"):
        wire(said(b"\x1f\x8b", "200 OK", f"Content-Encoding: {encoding}")).hook.get_transfer("t")


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", f"Content-Length: {1 << 40}"])
def test_a_response_without_end_fills_no_memory(wire: Callable[..., Wire], framing: str) -> None:
    piece, sent = b"x" * (1 << 20), list[int]()

    def endless(stream: socket.socket, _: bytes) -> None:
        sent.append(0)
        stream.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        while sent[-1] < 1 << 28:  # without end for who does not stop reading
            stream.sendall(b"100000\r\n" + piece + b"\r\n" if "chunked" in framing else piece)
            sent[-1] += len(piece)

    assert wire(endless, transfer()).hook.get_transfer("t").id == "t"
    assert 0 < max(sent) < 1 << 27


def test_a_listing_whose_cursors_go_in_circles_ends(wire: Callable[..., Wire]) -> None:
    service = wire(*(said({"data": [], "next_cursor": cursor}) for cursor in "abab"))
    assert (list(service.hook.iter_transfers()), len(service.lines)) == ([], 3)


def test_a_message_of_the_service_shows_no_secret(wire: Callable[..., Wire]) -> None:
    answer, phone = "cinnamon-7731-heron", "+1 (555) 867-5309"
    new = build_new_transfer(
        subject="S", recipients={"email": "ann@example.com", "phone": phone}, security="question",
        security_question="Bird?", security_answer=answer,
    )  # fmt: skip
    quoted = " and ".join((answer, phone, TRANSFER_KEY, EVENT_KEY))
    with pytest.raises(errors.InvalidRequest, match="This is wrong") as refused:
        wire(refusal(400, "invalid_request", f"This is wrong: {quoted}\n\x1b[31m")).hook.create_transfer(new)
    assert str(refused.value).isprintable()
    for secret in (answer, phone, TRANSFER_KEY, EVENT_KEY):
        assert secret not in str(refused.value) + repr(vars(refused.value)) + repr(new)


def test_a_body_of_nonsense_says_in_a_short_line_what_has_failed(wire: Callable[..., Wire]) -> None:
    with pytest.raises(errors.ServerFault) as failure:
        wire(
            said(json.dumps({"error": "x\r\n" * 99, "message": "\x1b[31m" + "y" * 99_999}).encode(), "500 X")
        ).hook.list_files("t")
    assert len(str(failure.value)) < 1_300
    assert str(failure.value).isprintable()


STORED = said({"id": "f", "name": "x", "size": 1}, "201 Created")


def upload_of(*chunks: bytes) -> Upload:
    return Upload("ü.bin", sum(map(len, chunks)), lambda: iter(chunks))


@pytest.mark.parametrize("sizes", [(), (65_536, 934_465), (0, 2, 0, 2, 0)])
def test_an_upload_declares_its_very_length_and_name(wire: Callable[..., Wire], sizes: tuple[int, ...]) -> None:
    read: list[int] = []

    def attach(stream: socket.socket, request: bytes) -> None:
        read.append(read_body(stream, request))
        stream.sendall(STORED)

    service = wire(attach)
    service.hook.attach_file("t", upload_of(*(b"u" * size for size in sizes)))
    (request,) = service.server.requests
    assert service.lines == ["POST /v1/transfers/t/files HTTP/1.1"]
    assert read == [sum(sizes)]
    assert header(request, "Content-Length") == str(sum(sizes))
    assert header(request, "Transfer-Encoding") is None
    assert header(request, "Content-Disposition") == "attachment; filename=\"u.bin\"; filename*=UTF-8''%C3%BC.bin"


@pytest.mark.parametrize("drains", [True, False])
def test_an_answer_before_the_end_of_an_upload_is_heard(wire: Callable[..., Wire], drains: bool) -> None:
    def early(stream: socket.socket, request: bytes) -> None:
        stream.sendall(refusal(413, "file_too_large"))
        if drains:
            read_body(stream, request)

    service = wire(early)
    with pytest.raises(errors.FileTooLarge):
        service.hook.attach_file("t", upload_of(*[b"u" * (1 << 20)] * 16))
    assert len(service.lines) == 1
