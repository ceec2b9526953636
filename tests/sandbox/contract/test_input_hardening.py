"""Input that nobody would send by mistake. The answer is always the documented error, never a 500."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.rule("R48: invalid_request")

BODY = '{"subject": "x", "recipients": [{"email": "ann@example.com"}]}'
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"7",
        b"{",
        BODY[:-1].encode(),
        BODY.encode() + b"x",
        BODY.encode("utf-16"),
        b"\xef\xbb\xbf" + BODY.encode(),
        BODY.replace("x", "\xff").encode("latin-1"),
        BODY.replace('"x"', '"\\ud800"').encode(),
        BODY.replace('"x"', '"\\u0000"').encode(),
        BODY.replace('"x"', '"a\x00b"').encode(),
        BODY.replace('"x"', "NaN").encode(),
        BODY.replace('"x"', "1" * 10_000).encode(),
        BODY.replace('"x"', "[" * 100_000 + "]" * 100_000).encode(),
        BODY.replace('"x"', '{"a":' * 100_000 + "1" + "}" * 100_000).encode(),
        b"[" * 500_000,
        BODY.replace('"subject"', '"subject": "y", "subject"').encode(),
        BODY.replace('"email"', '"email": "bob@example.com", "email"').encode(),
        BODY.replace('"x"', '"' + "x" * 1_100_000 + '"').encode(),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies(api: Any, refused: Any, body: bytes) -> None:
    refused(api.http.post("/v1/transfers", content=body, headers=JSON), 400, "invalid_request")


def test_a_repeated_field_is_named(api: Any, refused: Any) -> None:
    body = BODY.replace('"subject"', '"subject": "y", "subject"')
    assert "subject" in refused(api.http.post("/v1/transfers", content=body, headers=JSON), 400, "invalid_request")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_content_type(api: Any, refused: Any, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    assert "Content-Type" in refused(
        api.http.post("/v1/transfers", content=BODY.encode(), headers=headers), 400, "invalid_request"
    )


def test_content_type_with_a_charset(api: Any) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert api.http.post("/v1/transfers", content=BODY, headers=headers).status_code == 201


def test_a_chunked_json_body_is_fine(api: Any) -> None:
    assert api.http.post("/v1/transfers", content=iter([BODY.encode()]), headers=JSON).status_code == 201


def test_a_json_body_that_is_cut_off(api: Any, refused: Any, wire: Callable[[], Any]) -> None:
    connection = wire()
    connection.request("POST", "/v1/transfers", "Content-Type: application/json", "Content-Length: 100")
    connection.socket.sendall(BODY.encode()[:20])
    connection.socket.shutdown(socket.SHUT_WR)
    refused(connection.answer(), 400, "invalid_request")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    ["subject", "recipients", "message", "security", "security_question", "security_answer", "email", "name", "phone"]
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    changes=st.dictionaries(fields, values, min_size=1, max_size=3), person=st.dictionaries(fields, values, max_size=3)
)
def test_any_json_is_answered(api: Any, unlimited: None, changes: dict[str, Any], person: dict[str, Any]) -> None:
    body = {"subject": "x", "recipients": [{"email": "ann@example.com", **person}], **changes}
    content = json.dumps(body, ensure_ascii=True).encode()
    assert api.http.post("/v1/transfers", content=content, headers=JSON).status_code in {201, 400}


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/none", "/v2/transfers", "/v1/transfers/", "/v1//transfers", "/x%00y"]
)
def test_unknown_paths(api: Any, refused: Any, path: str) -> None:
    refused(api.http.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/transfers"), ("PATCH", "/v1/transfers/x"), ("GET", "/v1/transfers/x/send")]
)
def test_unknown_methods(api: Any, refused: Any, method: str, path: str) -> None:
    response = api.http.request(method, path)
    refused(response, 405, "method_not_allowed")
    assert response.headers["allow"]


@pytest.mark.parametrize(
    "name", ["%00", "%ff", "..", "%2e%2e", "x" * 5000, "'; DROP TABLE transfers; --", "\U0001f600"]
)
def test_ids_are_opaque(api: Any, refused: Any, name: str) -> None:
    for method, rest in [("GET", "/files"), ("POST", "/send"), ("GET", "/files/" + name)]:
        refused(api.http.request(method, f"/v1/transfers/{name}x{rest}"), 404, "not_found")


@pytest.mark.rule("R48: internal_error")
@pytest.mark.control
def test_a_fault_of_the_server_shows_nothing(api: Any, refused: Any, tmp_path: Any) -> None:
    draft = api.draft()["id"]
    (tmp_path / "data" / "partial").rmdir()
    message = refused(api.attach(draft, content=b"x"), 500, "internal_error")
    assert "partial" not in message
    assert api.get(draft)["files"] == []
