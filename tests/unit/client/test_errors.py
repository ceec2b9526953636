"""Each documented error has a class of its own, and every other response one of its kind (service-api.md, R48)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.errors import CallError, ServerFault, ServiceError, error_of

DOCUMENTED = {
    (400, "invalid_request"), (401, "invalid_api_key"), (403, "api_not_enabled"), (403, "api_not_permitted"),
    (403, "sending_not_permitted"), (403, "auth_option_not_enabled"), (403, "no_credit"), (404, "not_found"),
    (409, "invalid_state"), (409, "transfer_limit_reached"), (409, "recipient_limit_exceeded"),
    (411, "length_required"), (413, "file_too_large"), (429, "rate_limited"), (500, "internal_error"),
    (502, "service_unavailable"), (503, "service_unavailable"), (504, "service_unavailable"),
}  # fmt: skip


def test_no_two_documented_codes_are_one_error_and_each_says_what_to_do() -> None:
    kinds = {(status, code): type(error_of(status, code, "")) for status, code in DOCUMENTED}
    assert len({kind for kind in kinds.values() if kind is not ServerFault}) == len({code for _, code in kinds}) - 2
    unknown = error_of(418, "", "").advice, ServiceError.advice
    assert not any(kind.advice in unknown for kind in kinds.values() if kind is not kinds[400, "invalid_request"])


@given(st.integers(100, 699), st.text() | st.sampled_from(sorted(code for _, code in DOCUMENTED)), st.text())
def test_any_status_and_code_are_an_error_of_that_status(status: int, code: str, message: str) -> None:
    error = error_of(status, code, message, 7.0)
    assert isinstance(error, ServiceError)
    assert (error.status, error.code, error.message, error.retry_after) == (status, code, message, 7.0)
    assert error.in_doubt is (status // 100 == 5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("kind", [kind for kind in CallError.__subclasses__() if kind is not ServiceError])
def test_other_errors_of_a_call_reach_another_process(kind: type[CallError]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("words")))) == "words"
