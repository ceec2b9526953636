"""The two drivers of a flow: all the difference between sync and async is on this page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, TypeVar

from outbound_transfer.protocol.errors import CallError
from outbound_transfer.protocol.exchange import Call, Flow

T = TypeVar("T")


def drive(flow: Flow[T], perform: Callable[[Call[Any]], Any]) -> T:
    """Run ``flow`` to its result; errors of calls are thrown into it, any other exception ends it."""
    with closing(flow):
        try:
            call = next(flow)
            while True:
                try:
                    result = perform(call)
                except CallError as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[T], perform: Callable[[Call[Any]], Awaitable[Any]]) -> T:
    """The same, awaiting each call."""
    with closing(flow):
        try:
            call = next(flow)
            while True:
                try:
                    result = await perform(call)
                except CallError as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
