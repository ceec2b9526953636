"""No request makes more work than in proportion to its size: nobody can hold up the others with a clever one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from http.cookies import SimpleCookie
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.service.sandbox import SandboxService
from outbound_transfer_sandbox.web import page_request
from support.work import Machine, grows_faster_than

pytestmark = pytest.mark.control

SIZE = 1500


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, str, str, str]]:
    """The sandbox, a key, a draft and what ends the name of its cookies."""
    with pytest.MonkeyPatch.context() as patch, closing(SandboxService(tmp_path_factory.mktemp("data"))) as service:
        patch.setattr(defaults, "PASSWORD_LOG_N", 4)
        key, _ = service.ensure_keys(None, None)
        service.context.change_account(
            type(service.context.account)(requests_per_window=10**9, feed_interval_seconds=0)
        )
        with closing(Machine(service)) as machine:
            body = b'{"subject": "x", "recipients": [{"email": "ann@example.com"}]}'
            head = request("POST", "/v1/transfers", f"Authorization: Bearer {key}", "Content-Type: application/json")
            made = machine.answer(with_body(head, body))
            draft = json.loads(made.partition(b"\r\n\r\n")[2])["id"]
            yield machine, key, draft, service.context.derive_secret("cookie")[:8]


def request(method: str, path: str, *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", *lines, "Connection: close"]
    if not any(line.lower().startswith("host:") for line in lines):
        head.append("Host: localhost")
    return "\r\n".join(head).encode("latin-1", "replace")


def with_body(head: bytes, body: bytes) -> bytes:
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


# (method, path, a line of the head): `{}` is what the search repeats, `{draft}` a draft.
UPLOAD = ("POST", "/v1/transfers/{draft}/files")
HEADS = [
    *((*UPLOAD, f"Content-Disposition: {form}") for form in (
        "{}", "attachment; filename={}", 'attachment; filename="{}"', "attachment; filename*=UTF-8''{}",
        "attachment; {}=x",
    )),
    *(("GET", "/sign-in", line) for line in (
        "Cookie: {}", "Cookie: sandbox_web_{cookie}={}", 'Cookie: sandbox_web_{cookie}="{}"', "Accept: {}", "Host: {}",
        "X-{}: 1", "{}: 1", "X: 1\r\n{}", "Transfer-Encoding: {}", "Expect: {}",
    )),
    *(("GET", "/static/app.css", line) for line in ("Range: {}", "Range: bytes={}", "If-Range: {}")),
    *(("POST", "/_sandbox/faults/release", line) for line in (
        "Host: {}", "Origin: http://{}", "Sec-Fetch-Site: {}", "{}: 1",
    )),
    *(("POST", "/v1/transfers", line) for line in ("Content-Type: {}", "Content-Length: {}", "Authorization: {}")),
    *(("GET", path, "X: 1") for path in (
        "/v1/transfers/{}", "/v1/transfers?{}", "/v1/transfers?cursor={}", "/v1/transfers?limit={}",
        "/v1/events?cursor={}", "/sign-in?next={}", "/static/{}", "/pickup/{}", "/{}",
    )),
]  # fmt: skip
JSON = [
    '{{"subject": "{}", "recipients": [{{"email": "a@b.example"}}]}}',
    '{{"subject": "x", "recipients": [{{"email": "{}@b.example"}}]}}',
    '{{"subject": "x", "recipients": [{{"email": "a@{}.example"}}]}}',
    '{{"subject": "x", "recipients": [{{"email": "a@b.example", "phone": "{}"}}], "security": "sms"}}',
    '{{"subject": "x", "recipients": [{{"email": "a@b.example"}}], "security_answer": "{}"}}',
    '{{"subject": {}, "recipients": []}}', "[{}]", "{}", '{{"x": [{}', '{{{} "subject": "x"}}',
]  # fmt: skip
FORMS = ["{}", "csrf={}", "user={}&password=x", "next={}", "{}=1&user=x"]

atoms = st.one_of(
    st.text("\"\\;=,:()<>@.%*' \t/-[]{}#&+?!ab01", min_size=1, max_size=4),
    st.sampled_from([';filename*0="a"', "a=b;", '\\"', "\\1", "%41", "%C3%A9", "0-1,", "1,", '"a":1,', "e\u0301", "."]),
)


def linear(task: Callable[[int], Any], *of: str) -> None:
    assert not grows_faster_than(task, SIZE), f"twice the request makes more than twice the work: {of}"


wild = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def check_head(machine: Any, where: tuple[str, str, str], atom: str) -> None:
    one, key, draft, cookie = machine
    method, path, line = (part.replace("{draft}", draft).replace("{cookie}", cookie) for part in where)

    def ask(count: int) -> None:
        long_path = path.replace("{}", "".join(c for c in atom if "!" <= c <= "~") * count)
        lines = [line.replace("{}", atom * count)]
        if not line.startswith("Authorization"):
            lines.append(f"Authorization: Bearer {key}")
        head = request(method, long_path, *lines)
        one.answer(head + b"\r\n\r\n" if line.startswith("Content-Length") else with_body(head, b""))

    linear(ask, method, path, line, atom)


@wild
@given(where=st.sampled_from(HEADS), atom=atoms)
@example(where=HEADS[2], atom=";")
@example(where=HEADS[0], atom=";filename*0=a")
@example(where=HEADS[7], atom="\\")
@example(where=("GET", "/static/{}", "X: 1"), atom="0/")
def test_heads(machine: Any, where: tuple[str, str, str], atom: str) -> None:
    check_head(machine, where, atom)


@wild
@given(shape=st.sampled_from(JSON), atom=atoms)
@example(shape="{}", atom="[")
@example(shape="{}", atom='{"a":')
@example(shape=JSON[5], atom="1")
@example(shape=JSON[1], atom="\u0316\u0301")
def test_json(machine: Any, shape: str, atom: str) -> None:
    one, key, *_ = machine
    head = request("POST", "/v1/transfers", f"Authorization: Bearer {key}", "Content-Type: application/json")
    linear(lambda count: one.answer(with_body(head, shape.format(atom * count).encode())), shape, atom)


@wild
@given(shape=st.sampled_from(FORMS), atom=atoms)
def test_forms(machine: Any, shape: str, atom: str) -> None:
    head = request("POST", "/sign-in", "Content-Type: application/x-www-form-urlencoded")
    linear(lambda count: machine[0].answer(with_body(head, shape.format(atom * count).encode())), shape, atom)


# Tests of the test.


def test_the_count_tells_a_square_from_a_line() -> None:
    def square(count: int) -> None:
        text = "x" * count
        for _ in range(count):
            text.find("y")

    def line(count: int) -> None:
        for word in ("x " * count).split():
            word.find("y")

    assert grows_faster_than(square, SIZE)
    assert not grows_faster_than(line, SIZE)


def unbounded_dispositions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MAX_DISPOSITION_LENGTH", 10**9)
    monkeypatch.setattr(defaults, "MAX_DISPOSITION_PARAMETERS", 10**9)


def a_library_s_cookies(monkeypatch: pytest.MonkeyPatch) -> None:
    def brought(header: str, name: str) -> str:
        found = SimpleCookie(header).get(name)
        return found.value if found else ""

    monkeypatch.setattr(page_request, "_cookie_value", brought)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [unbounded_dispositions, a_library_s_cookies])
def test_the_search_finds(machine: Any, mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    mutant(monkeypatch)
    many = settings(wild, max_examples=2000, derandomize=True, database=None, phases=[Phase.generate])

    @many
    @given(where=st.sampled_from(HEADS), atom=atoms)
    def search(where: tuple[str, str, str], atom: str) -> None:
        check_head(machine, where, atom)

    with pytest.raises(AssertionError, match="twice the work"):
        search()
