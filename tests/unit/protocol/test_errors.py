"""Every documented error has its class; nothing hostile or secret gets into a message (service-api.md, R48)."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol import errors
from outbound_transfer.protocol.endpoints import (
    create_transfer,
    discard_transfer,
    get_file,
    get_transfer,
    list_files,
    read_events,
    send_transfer,
)
from outbound_transfer.protocol.errors import CallError, MalformedResponse, ServiceError
from outbound_transfer.protocol.messages import Call, Response, error_from
from outbound_transfer.protocol.models import build_new_transfer

#: service-api.md, R48: (status, code) -> (class, may it have taken effect, may the same call succeed later).
DOCUMENTED = {
    (400, "invalid_request"): (errors.InvalidRequest, False, False),
    (401, "invalid_api_key"): (errors.InvalidApiKey, False, False),
    (403, "api_not_enabled"): (errors.ApiNotEnabled, False, False),
    (403, "api_not_permitted"): (errors.ApiNotPermitted, False, False),
    (403, "sending_not_permitted"): (errors.SendingNotPermitted, False, False),
    (403, "auth_option_not_enabled"): (errors.AuthOptionNotEnabled, False, False),
    (403, "no_credit"): (errors.NoCredit, False, False),
    (404, "not_found"): (errors.NotFound, False, False),
    (409, "invalid_state"): (errors.InvalidState, False, False),
    (409, "transfer_limit_reached"): (errors.TransferLimitReached, False, True),
    (409, "recipient_limit_exceeded"): (errors.RecipientLimitExceeded, False, False),
    (411, "length_required"): (errors.LengthRequired, False, False),
    (413, "file_too_large"): (errors.FileTooLarge, False, False),
    (429, "rate_limited"): (errors.RateLimited, False, True),
    (500, "internal_error"): (errors.ServerFault, True, True),
    (502, "service_unavailable"): (errors.ServerFault, True, True),
    (503, "service_unavailable"): (errors.ServerFault, True, True),
    (504, "service_unavailable"): (errors.ServerFault, True, True),
}

FALLBACKS = [
    (400, "new_code", errors.InvalidRequest),
    (403, "new_code", errors.Forbidden),
    (409, "new_code", errors.Conflict),
    (500, "", errors.ServerFault),
    (418, "teapot", errors.InvalidRequest),
    (507, "", errors.ServerFault),
    (599, "invalid_request", errors.ServerFault),
    (600, "", ServiceError),
    (199, "", ServiceError),
]

FOREIGN = [
    (404, "rate_limited", errors.NotFound),
    (200 + 300, "invalid_state", errors.ServerFault),
    (403, "transfer_limit_reached", errors.Forbidden),
    (409, "no_credit", errors.Conflict),
    (403, "invalid_api_key", errors.Forbidden),
    (429, "internal_error", errors.RateLimited),
]

CALL = get_transfer("t")


def failed(status: int, body: bytes, call: Call[object] = CALL, **headers: str) -> CallError:
    return error_from(call, Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, body))


def said(code: str, message: str) -> bytes:
    return json.dumps({"error": code, "message": message}).encode()


@pytest.mark.parametrize("call", [CALL, send_transfer("t"), list_files("t"), get_file("t", "f"), discard_transfer("t")])
def test_a_transfer_that_is_not_found_is_named(call: Call[object]) -> None:
    assert str(failed(404, said("not_found", "Unknown."), call)).startswith("404 not_found: transfer 't': Unknown. The")
    assert str(failed(404, said("not_found", ""), call)).startswith("404 not_found: transfer 't': the service gave no")
    assert "transfer '" not in str(failed(404, said("not_found", "Unknown."), read_events()))


def test_an_id_that_is_the_key_is_not_shown() -> None:
    response = Response(404, {}, said("not_found", "Unknown."), secrets=("obt_0123456789",))
    assert "0123456789" not in str(error_from(get_transfer("obt_0123456789"), response))


@pytest.mark.parametrize(("status", "code"), DOCUMENTED)
def test_every_documented_error_has_its_class(status: int, code: str) -> None:
    kind, in_doubt, is_transient = DOCUMENTED[status, code]
    error = failed(status, said(code, "words"))
    assert type(error) is kind
    assert (error.in_doubt, error.is_transient) == (in_doubt, is_transient)
    message = "transfer 't': words" if status == 404 else "words"
    assert (error.status, error.code, error.message, error.retry_after) == (status, code, message, None)
    assert error.advice in str(error), "every error says what to do"


def test_every_code_is_documented_and_every_documented_code_has_a_class() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServiceError)]
    codes = {code for kind in classes for code in kind.codes}
    statuses = {status for kind in classes for status in kind.statuses}
    assert codes == {code for _, code in DOCUMENTED}
    assert statuses == {status for status, _ in DOCUMENTED}
    assert all(kind.advice != ServiceError.advice for kind, _, _ in DOCUMENTED.values())


@pytest.mark.parametrize(("status", "code", "kind"), FALLBACKS + FOREIGN)
def test_other_codes_fall_back_to_the_status_then_to_its_hundred(
    status: int, code: str, kind: type[ServiceError]
) -> None:
    assert type(failed(status, said(code, "words"))) is kind


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>503</html>", b"[]", b"null", b"\xff\xfe", b'{"error": 7}', b"[" * 200_000, b'{"x":' * 200_000],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_without_error_object_leaves_the_status(body: bytes) -> None:
    error = failed(503, body)
    assert isinstance(error, errors.ServerFault)
    assert (error.code, error.message) == ("", "")


@pytest.mark.parametrize("body", [b"", b"<html>Sign in</html>", b'{"detail": "Not Found"}', b'{"error": ""}', b"[]"])
@pytest.mark.parametrize("status", [401, 403, 404, 409])
def test_a_rejection_without_error_object_is_not_from_the_service(status: int, body: bytes) -> None:
    error = failed(status, body)
    assert isinstance(error, MalformedResponse)
    assert error.is_transient
    assert error.in_doubt
    assert f"status {status} without the service's error object" in str(error)


@pytest.mark.parametrize("status", [400, 411, 413, 429, 500, 502, 503, 504])
def test_other_statuses_say_enough_by_themselves(status: int) -> None:
    assert isinstance(failed(status, b"<html></html>"), ServiceError)


def test_errors_of_the_feed_need_no_error_object() -> None:
    assert isinstance(failed(401, b"", read_events()), errors.InvalidApiKey)


@pytest.mark.parametrize("rest", ['"message": null', '"message": "m", "new": {"a": [1]}', '"details": []'])
def test_a_code_counts_whatever_stands_beside_it(rest: str) -> None:
    error = failed(409, f'{{"error": "transfer_limit_reached", {rest}}}'.encode())
    assert isinstance(error, errors.TransferLimitReached)


@pytest.mark.parametrize("status", [300, 301, 302, 304, 307, 308])
def test_a_redirect_is_malformed(status: int) -> None:
    error = failed(status, b"", location="https://elsewhere.example/")
    assert isinstance(error, MalformedResponse)
    assert "not followed" in str(error)


@pytest.mark.parametrize(("status", "code"), DOCUMENTED)
def test_service_errors_survive_pickling(status: int, code: str) -> None:
    error = failed(status, said(code, "words"), retry_after="7")
    error.in_doubt = True
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize("kind", [kind for kind in CallError.__subclasses__() if kind is not ServiceError])
def test_other_errors_survive_pickling(kind: type[CallError]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("words")))) == "words"


# ---------------------------------------------------------------------------------------------------------- secrets

PHONE, ANSWER, KEY = "+1 (555) 867-5309", "cinnamon-7731-heron", "otk_5f1c09d2e7ab"
NEW = build_new_transfer(
    subject="S",
    recipients=[{"email": "a@example.com", "phone": PHONE}],
    security="question",
    security_question="Bird?",
    security_answer=ANSWER,
)


def test_no_message_repeats_a_secret_of_the_call() -> None:
    error = failed(400, said("invalid_request", f"bad: {ANSWER} and {PHONE}"), create_transfer(NEW))
    assert error.message == "bad: *** and ***"


def test_no_message_repeats_the_key() -> None:
    response = Response(401, {"x": KEY}, said("invalid_api_key", f"the key {KEY} is revoked"), secrets=(KEY,))
    assert error_from(send_transfer("t"), response).message == "the key *** is revoked"
    assert KEY not in repr(response)


def test_a_secret_that_is_a_word_of_a_code_does_not_change_the_error() -> None:
    response = Response(403, {}, said("auth_option_not_enabled", "no such option"), secrets=("option",))
    error = error_from(create_transfer(NEW), response)
    assert type(error) is errors.AuthOptionNotEnabled
    assert (error.code, error.message) == ("auth_option_not_enabled", "no such ***")


def test_an_undocumented_code_is_redacted_too() -> None:
    error = failed(400, said(f"{ANSWER}\n{PHONE}", ""), create_transfer(NEW))
    assert error.code == "*** ***"


@given(st.text(), st.text())
def test_messages_are_one_short_printable_line(code: str, message: str) -> None:
    error = failed(400, said(code, message) if code.isprintable() else b"{}")
    text = str(error)
    assert text.isprintable()
    assert len(text) < 1_200


def test_a_date_to_wait_for_counts_from_the_services_own_clock() -> None:
    headers = {"date": "Fri, 31 Jan 2020 10:00:00 GMT", "retry-after": "Fri, 31 Jan 2020 10:00:30 GMT"}
    error = error_from(get_transfer("t"), Response(429, headers, b'{"error": "rate_limited"}'))
    assert isinstance(error, ServiceError)
    assert error.retry_after == 30
