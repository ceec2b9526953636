"""Input that nobody would send by mistake. The answer is always the documented error, never a 500."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.rule("R48: invalid_request")

BODY = '{"subject": "x", "recipients": [{"email": "ann@example.com"}]}'
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", BODY.encode() + b"x", BODY.encode("utf-16"), b"\xef\xbb\xbf" + BODY.encode()),
        BODY.replace("x", "\xff").encode("latin-1"),
        BODY.replace('"x"', '"\\ud800"').encode(),
        BODY.replace('"x"', '"\\u0000"').encode(),
        BODY.replace('"x"', '"a\x00b"').encode(),
        BODY.replace('"x"', "1" * 10_000).encode(),
        BODY.replace('"x"', "[" * 100_000 + "]" * 100_000).encode(),
        BODY.replace('"x"', '{"a":' * 100_000 + "1" + "}" * 100_000).encode(),
        BODY.replace('"subject"', '"subject": "y", "subject"').encode(),
        BODY.replace('"email"', '"email": "bob@example.com", "email"').encode(),
        BODY.replace('"x"', '"' + "x" * 1_100_000 + '"').encode(),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies(api: Any, refused: Any, body: bytes) -> None:
    refused(api.http.post("/v1/transfers", content=body, headers=JSON), 400, "invalid_request")


def test_the_content_type_must_be_json(api: Any, refused: Any) -> None:
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        response = api.http.post("/v1/transfers", content=BODY.encode(), headers={"Content-Type": kind} if kind else {})
        assert "Content-Type" in refused(response, 400, "invalid_request")
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert api.http.post("/v1/transfers", content=BODY, headers=headers).status_code == 201


def test_unknown_paths_and_methods(api: Any, refused: Any) -> None:
    for path in ("/v1", "/v1/", "/v1/none", "/v2/transfers", "/v1/transfers/", "/v1//transfers", "/x%00y"):
        refused(api.http.get(path), 404, "not_found")
    for method, path in (("PUT", "/v1/transfers"), ("PATCH", "/v1/transfers/x"), ("GET", "/v1/transfers/x/send")):
        response = api.http.request(method, path)
        refused(response, 405, "method_not_allowed")
        assert response.headers["allow"]


@pytest.mark.rule("R48: internal_error")
def test_a_fault_of_the_server_shows_nothing(api: Any, refused: Any, tmp_path: Any) -> None:
    draft = api.draft()["id"]
    (tmp_path / "data" / "partial").rmdir()
    message = refused(api.attach(draft, content=b"x"), 500, "internal_error")
    assert "partial" not in message
    assert api.get(draft)["files"] == []
