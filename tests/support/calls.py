"""Calls of the service, met on the wire: what happens right before one, or right after it took effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock
from urllib.parse import quote

import httpx


@dataclass(frozen=True)
class ApiCall:
    method: str
    path: str

    def matches(self, request: httpx.Request) -> bool:
        return self.method == request.method and re.fullmatch(self.path, request.url.path) is not None


CREATE = ApiCall("POST", "/v1/transfers")
GET = ApiCall("GET", "/v1/transfers/[^/]+")
READ = ApiCall("GET", ".*")
ATTACH = ApiCall("POST", "/v1/transfers/[^/]+/files")
SEND = ApiCall("POST", "/v1/transfers/[^/]+/send")


class ProcessCrashed(BaseException):
    """The process has ended."""


#: The process that runs now: one that is dead calls nothing more, and stores nothing. Each piece of a task begins anew.
process = SimpleNamespace(is_dead=False)


def die() -> NoReturn:
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


@contextmanager
def during_upload(name: str, at_bytes: int, act: Callable[[], object]) -> Iterator[None]:
    """Let ``act`` happen when a file's first bytes, up to ``at_bytes``, were read; 0: before the first of them is."""
    due = iter([act])

    def act_once() -> None:
        next(due, lambda: None)()

    class Watched(httpx.SyncByteStream):
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __iter__(self) -> Iterator[bytes]:
            count = 0
            for chunk in self.stream:
                count += len(chunk)
                if count >= at_bytes:
                    act_once()
                yield chunk

    def handle(request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        if ATTACH.matches(request) and quote(name) in request.headers["Content-Disposition"]:
            if at_bytes == 0:
                act_once()
            else:
                request.stream = Watched(request.stream)
        return make()

    with intercepted(handle):
        yield


@contextmanager
def dying_after(call: ApiCall, *, skip: int = 0) -> Iterator[None]:
    """The task's process dies when a call has taken effect, before it knows that, or stores it."""

    def handle(request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        if process.is_dead:
            raise ProcessCrashed
        return make()

    with intercepted(handle), after(call, die, skip=skip):
        yield
