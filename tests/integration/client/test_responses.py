"""Which error a user gets for which response, and what is never believed."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer import exceptions as errors
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from support.provider import build_new_transfer
from support.timeouts import TEST_TIMEOUT
from support.wire import EVENT_KEY, TRANSFER_KEY, Wire, refusal, said, transfer

#: service-api.md, R48: what a repeat cannot help; class, and a word of the advice.
FINAL = {
    (400, "invalid_request"): (errors.InvalidRequest, "Correct the field"),
    (401, "invalid_api_key"): (errors.InvalidApiKey, "Check the API key"),
    (403, "api_not_enabled"): (errors.ApiNotEnabled, "administrator must enable"),
    (403, "api_not_permitted"): (errors.ApiNotPermitted, "administrator must grant"),
    (403, "sending_not_permitted"): (errors.SendingNotPermitted, "administrator"),
    (403, "auth_option_not_enabled"): (errors.AuthOptionNotEnabled, "Choose a security option"),
    (403, "no_credit"): (errors.NoCredit, "Buy credit"),
    (404, "not_found"): (errors.NotFound, "use the key of the sending user"),
    (409, "recipient_limit_exceeded"): (errors.RecipientLimitExceeded, "split the delivery"),
    (411, "length_required"): (errors.LengthRequired, "proxy"),
    (413, "file_too_large"): (errors.FileTooLarge, "split it or have the limit raised"),
    # Codes of tomorrow, and known ones with a status that is not theirs.
    (400, "new_code"): (errors.InvalidRequest, "Correct"),
    (403, "new_code"): (errors.Forbidden, "administrator"),
    (409, "new_code"): (errors.Conflict, ""),
    (418, "teapot"): (errors.InvalidRequest, ""),
    (403, "transfer_limit_reached"): (errors.Forbidden, ""),
    (409, "no_credit"): (errors.Conflict, ""),
}


@pytest.mark.parametrize(("status", "code"), FINAL)
def test_a_refusal_is_raised_at_once_as_its_class_with_what_to_do(
    wire: Callable[..., Wire], status: int, code: str
) -> None:
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


FAULTS = [(500, "internal_error"), (502, "service_unavailable"), (503, ""), (504, "new"), (507, ""), (599, "no_credit")]


@pytest.mark.parametrize(("status", "code"), FAULTS)
def test_a_fault_of_the_service_is_repeated_and_then_raised(wire: Callable[..., Wire], status: int, code: str) -> None:
    service = wire(refusal(status, code))
    with pytest.raises(errors.ServerFault) as failure:
        service.hook.get_transfer("t")
    assert failure.value.status == status
    assert 3 <= len(service.lines) <= 20


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


@pytest.mark.parametrize(
    "fields",
    [{"id": None}, {"status": 1}, {"recipients": {}}, {"recipients": [{"name": "a"}]}, {"files": [{"id": "f"}]}],
)
def test_a_field_of_another_type_is_not_believed(wire: Callable[..., Wire], fields: dict[str, Any]) -> None:
    with pytest.raises(errors.MalformedResponse):
        wire(transfer(**fields)).hook.get_transfer("t")


def test_another_transfer_than_was_asked_for_is_not_believed(wire: Callable[..., Wire]) -> None:
    with pytest.raises(errors.MalformedResponse, match="another transfer"):
        wire(transfer("other")).hook.get_transfer("t")


GATEWAYS = [
    b"",
    b"<html>Sign in</html>",
    b'{"detail": "Not Found"}',
    b'{"error": ""}',
    b"[]",
    b'{"timestamp": "2026-11-28T20:00:00Z", "error": "Not Found", "message": "", "path": "/v1"}',
    b'{"error": "conflict"}',
]


@pytest.mark.parametrize("body", GATEWAYS)
@pytest.mark.parametrize("status", [401, 403, 404, 408, 409])
def test_the_sign_in_page_of_a_proxy_is_not_taken_for_a_refusal(
    wire: Callable[..., Wire], status: int, body: bytes
) -> None:
    service = wire(said(body, f"{status} No"), transfer())
    assert service.hook.get_transfer("t").status == "pending"


@pytest.mark.parametrize(("status", "code"), [(401, "invalid_token"), (404, "rate_limited")])
def test_that_a_key_is_refused_or_a_transfer_gone_is_believed_of_documented_codes_alone(
    wire: Callable[..., Wire], status: int, code: str
) -> None:
    assert wire(refusal(status, code), transfer()).hook.get_transfer("t").status == "pending"


def test_a_status_and_fields_of_tomorrow_are_read(wire: Callable[..., Wire]) -> None:
    seen = wire(transfer(status="scheduled", color={"red": [1]}, files=[{"id": "f", "name": "a", "size": 1, "x": 2}]))
    found = seen.hook.get_transfer("t")
    assert found.status == "scheduled"
    assert found.files
    assert found.files[0].name == "a"


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


BROKEN = {
    "closed at once": b"",
    "cut in the status": b"HTTP/1.1 20",
    "cut in the headers": b"HTTP/1.1 200 OK\r\nContent-",
    "cut in the body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "cut in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "no HTTP and long": b"\x00" * 50_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_an_answer_that_breaks_off_leaves_the_call_in_doubt(wire: Callable[..., Wire], case: str, reset: bool) -> None:
    def answer(stream: socket.socket, _: bytes) -> None:
        stream.sendall(BROKEN[case])
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            stream.close()

    with pytest.raises(errors.NoResponse) as lost:
        wire(answer).hook.get_transfer("t")
    assert lost.value.in_doubt
    assert len(str(lost.value)) < 700


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_silence_ends_by_the_timeout_of_the_connection(wire: Callable[..., Wire], begun: bytes) -> None:
    done = threading.Event()

    def silent(stream: socket.socket, _: bytes) -> None:
        stream.sendall(begun)
        done.wait(TEST_TIMEOUT)

    service = wire(silent, transfer(), timeout=0.2, sleep=lambda _: done.set())
    assert service.hook.get_transfer("t").id == "t"


def test_an_invalid_row_of_a_listing_hides_no_other(wire: Callable[..., Wire], capfd: Any) -> None:
    good = {"id": "good", "status": "pending", "subject": "S", "recipients": [{"email": "ann@example.com"}]}
    poison = [{**good, "subject": None}, {**good, "id": 7}, None, 7, [], {**good, "recipients": [{"email": 1}]}]
    service = wire(said({"data": [*poison, good, *poison], "next_cursor": None}))
    assert [each.id for each in service.hook.iter_transfers()] == ["good"]
    assert "12 rows of the listing cannot be read" in "".join(capfd.readouterr())


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
