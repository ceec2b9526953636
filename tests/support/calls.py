"""Calls of the service, met on the wire: what happens right before one, or right after it took effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest import mock
from urllib.parse import quote

import httpx


@dataclass(frozen=True)
class ApiCall:
    """A kind of call; ``path`` is a regular expression."""

    method: str
    path: str

    def matches(self, request: httpx.Request) -> bool:
        return self.method == request.method and re.fullmatch(self.path, request.url.path) is not None


CREATE = ApiCall("POST", "/v1/transfers")
GET = ApiCall("GET", "/v1/transfers/[^/]+")
READ = ApiCall("GET", ".*")
DISCARD = ApiCall("DELETE", "/v1/transfers/[^/]+")
ATTACH = ApiCall("POST", "/v1/transfers/[^/]+/files")
SEND = ApiCall("POST", "/v1/transfers/[^/]+/send")


class ProcessCrashed(BaseException):
    """The process has ended."""


class _Process:
    """Whether the process that runs is dead: it calls nothing more, and stores nothing."""

    is_dead = False


#: The one that runs now; each piece of a task begins with a living one.
process = _Process()


def die() -> NoReturn:
    """End the process that runs."""
    process.is_dead = True
    raise ProcessCrashed


@contextmanager
def intercepted(handle: Callable[[httpx.Request, Callable[[], httpx.Response]], httpx.Response]) -> Iterator[None]:
    """Let ``handle`` make the calls of workers: it gets each request, and a function that makes it."""
    make = httpx.HTTPTransport.handle_request

    def handle_request(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        if not request.url.path.startswith("/v1/"):  # of the sandbox's control API
            return make(transport, request)
        return handle(request, lambda: make(transport, request))

    with mock.patch.object(httpx.HTTPTransport, "handle_request", handle_request):
        yield


@contextmanager
def before(call: ApiCall, *changes: Callable[[], object], skip: int = 0) -> Iterator[None]:
    """Each change happens right before a call, after ``skip`` such calls; what it raises ends the call."""
    left = iter([*[None] * skip, *changes])

    def handle(request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        if call.matches(request) and (due := next(left, None)):
            due()
        return make()

    with intercepted(handle):
        yield


@contextmanager
def after(call: ApiCall, *changes: Callable[[], object], skip: int = 0) -> Iterator[None]:
    """Each change happens when a call has taken effect, after ``skip`` such calls, before the response is heard."""
    left = iter([*[None] * skip, *changes])

    def handle(request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        response = make()
        if call.matches(request) and (due := next(left, None)):
            try:
                due()
            except BaseException:
                response.close()
                raise
        return response

    with intercepted(handle):
        yield


class _Watched(httpx.SyncByteStream):
    """The body of a request; ``act`` happens when so many bytes of it were read, before they are sent on."""

    def __init__(self, stream: Any, at_bytes: int, act: Callable[[], object]) -> None:
        self._stream, self._at_bytes, self._act = stream, at_bytes, act

    def __iter__(self) -> Iterator[bytes]:
        count, is_due = 0, True
        for chunk in self._stream:
            count += len(chunk)
            if is_due and count >= self._at_bytes:
                is_due = False
                self._act()
            yield chunk


@contextmanager
def during_upload(name: str, at_bytes: int, act: Callable[[], object]) -> Iterator[None]:
    """Let ``act`` happen when a file's first bytes, up to ``at_bytes``, were read; 0: before the first of them is."""
    is_due = True

    def act_once() -> None:
        nonlocal is_due
        if is_due:
            is_due = False
            act()

    def handle(request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        if ATTACH.matches(request) and quote(name) in request.headers["Content-Disposition"]:
            if at_bytes == 0:
                act_once()
            else:
                request.stream = _Watched(request.stream, at_bytes, act_once)
        return make()

    with intercepted(handle):
        yield


@contextmanager
def dying_after(call: ApiCall, *, skip: int = 0) -> Iterator[None]:
    """The task's process dies when a call has taken effect, before it knows that, or stores it.

    :param skip: how many such calls it survives.
    """

    def handle(request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        if process.is_dead:
            raise ProcessCrashed
        return make()

    with intercepted(handle), after(call, die, skip=skip):
        yield
